//! `tandem host top` on a terminal: state and keys. This module neither reads the host nor writes to a terminal.
//!
//! [`Screen`] takes intervals and keys, [`draw`] draws it, and [`terminal`] is the loop over both.
//! VMs are sorted by severity, can be unfolded into their vCPUs, searched by name, and paused for reading.
//! Intervals during a pause are dropped, so that the next one shown has the usual length.

pub mod draw;
pub mod terminal;

use std::collections::BTreeSet;

use ratatui::widgets::TableState;
use tandem_model::VcpuId;

use crate::top::figures::SortKey;
use crate::top::{TopInterval, TopVcpu, TopVm};

/// A key press.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Key {
    /// One line up.
    Up,
    /// One line down.
    Down,
    /// Ten lines up.
    PageUp,
    /// Ten lines down.
    PageDown,
    /// To the first line.
    Home,
    /// To the last line.
    End,
    /// Fold.
    Left,
    /// Unfold.
    Right,
    /// Fold or unfold; ends a search.
    Enter,
    /// Leaves the search, the help or the program.
    Escape,
    /// Removes a character.
    Backspace,
    /// Leaves the program in any state.
    Interrupt,
    /// Any character.
    Char(char),
}

/// Whether the loop continues.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Then {
    /// Continue.
    GoOn,
    /// Leave.
    Quit,
}

/// Identity of a line of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct LineId {
    pid: u32,
    vcpu: Option<VcpuId>,
}

/// A line of the table.
#[derive(Clone, Copy, Debug)]
enum Line<'a> {
    Vm(&'a TopVm),
    Vcpu(&'a TopVm, &'a TopVcpu),
}

impl Line<'_> {
    fn id(&self) -> LineId {
        match self {
            Line::Vm(vm) => LineId { pid: vm.pid, vcpu: None },
            Line::Vcpu(vm, vcpu) => LineId { pid: vm.pid, vcpu: Some(vcpu.index) },
        }
    }
}

/// State of the screen.
#[derive(Debug, Default)]
pub struct Screen {
    interval: Option<TopInterval>,
    /// Notes on the figures, see [`crate::top::text::notes`].
    notes: Vec<String>,
    sort: usize,
    unfolded: BTreeSet<u32>,
    all_unfolded: bool,
    search: String,
    is_typing: bool,
    is_paused: bool,
    shows_help: bool,
    /// The line under the cursor.
    chosen: Option<LineId>,
    table: TableState,
}

impl Screen {
    /// Starts without an interval.
    pub fn new(with_vcpus: bool) -> Screen {
        Screen { all_unfolded: with_vcpus, ..Screen::default() }
    }

    /// Takes a new interval and its notes; drops them while paused.
    pub fn take(&mut self, interval: TopInterval, notes: Vec<String>) {
        if !self.is_paused {
            self.interval = Some(interval);
            self.notes = notes;
        }
    }

    /// Returns the sort key of the VMs.
    fn sort_key(&self) -> SortKey {
        let keys = SortKey::all();
        keys[self.sort % keys.len()]
    }

    /// Handles a key.
    pub fn key(&mut self, key: Key) -> Then {
        match key {
            Key::Interrupt => return Then::Quit,
            _ if self.is_typing => self.type_key(key),
            _ if self.shows_help => self.shows_help = false,
            Key::Escape | Key::Char('q') => return Then::Quit,
            Key::Char('?' | 'h') => self.shows_help = true,
            Key::Char('/') => {
                self.search.clear();
                self.is_typing = true;
            }
            Key::Char('p' | ' ') => self.is_paused = !self.is_paused,
            Key::Char('v') => {
                self.all_unfolded = !self.all_unfolded;
                self.unfolded.clear();
            }
            Key::Char('s') => self.sort += 1,
            Key::Char('S') => self.sort += SortKey::all().len() - 1,
            Key::Char('k') => self.go(-1),
            Key::Char('j') => self.go(1),
            Key::Char(letter) => {
                let sort = SortKey::all().iter().position(|key| key.letter() == Some(letter));
                self.sort = sort.unwrap_or(self.sort);
            }
            Key::Up => self.go(-1),
            Key::Down => self.go(1),
            Key::PageUp => self.go(-10),
            Key::PageDown => self.go(10),
            Key::Home => self.go(isize::MIN),
            Key::End => self.go(isize::MAX),
            Key::Left => self.fold(|_| false),
            Key::Right => self.fold(|_| true),
            Key::Enter => self.fold(|is_unfolded| !is_unfolded),
            Key::Backspace => {}
        }
        Then::GoOn
    }

    fn type_key(&mut self, key: Key) {
        match key {
            Key::Enter => self.is_typing = false,
            Key::Escape => {
                self.search.clear();
                self.is_typing = false;
            }
            Key::Backspace => {
                self.search.pop();
            }
            Key::Char(letter) => self.search.push(letter),
            _ => {}
        }
    }

    /// The VMs that match the search, sorted.
    fn vms(&self) -> Vec<&TopVm> {
        let wanted = self.search.to_lowercase();
        let all = self.interval.iter().flat_map(|interval| &interval.vms);
        let mut vms: Vec<&TopVm> =
            all.filter(|vm| vm.called.to_lowercase().contains(&wanted)).collect();
        vms.sort_by(|one, two| self.sort_key().order(one, two));
        vms
    }

    fn is_unfolded(&self, vm: &TopVm) -> bool {
        self.all_unfolded != self.unfolded.contains(&vm.pid)
    }

    /// Returns the lines of the table, and the index of the line under the cursor.
    fn lines(&self) -> (Vec<Line<'_>>, Option<usize>) {
        let mut lines = Vec::new();
        for vm in self.vms() {
            lines.push(Line::Vm(vm));
            if self.is_unfolded(vm) {
                lines.extend(vm.vcpus.iter().map(|vcpu| Line::Vcpu(vm, vcpu)));
            }
        }
        let at = |id: LineId| lines.iter().position(|line| line.id() == id);
        // If a vCPU is folded away or gone, the cursor stays on its VM.
        let chosen = self.chosen.and_then(|id| {
            let vm = LineId { vcpu: None, ..id };
            at(id).or_else(|| at(vm))
        });
        (lines, chosen)
    }

    /// Moves the cursor; the first key puts it on the first line.
    fn go(&mut self, by: isize) {
        let (lines, chosen) = self.lines();
        let last = lines.len().saturating_sub(1);
        let to = match chosen {
            Some(at) => at.saturating_add_signed(by).min(last),
            None if by == isize::MAX => last,
            None => 0,
        };
        self.chosen = lines.get(to).map(Line::id);
    }

    fn fold(&mut self, want: impl Fn(bool) -> bool) {
        let (lines, chosen) = self.lines();
        let Some(Line::Vm(vm) | Line::Vcpu(vm, _)) = chosen.and_then(|at| lines.get(at)) else {
            return;
        };
        let (pid, is_unfolded) = (vm.pid, self.is_unfolded(vm));
        if want(is_unfolded) != is_unfolded && !self.unfolded.remove(&pid) {
            self.unfolded.insert(pid);
        }
    }
}

#[cfg(test)]
mod tests;
