//! The loop of `tandem host top` on a terminal: keys, intervals, drawing, and restoring the terminal.
//!
//! The terminal is restored when the loop ends: by a key, an error, SIGTERM, SIGINT, SIGHUP, or a panic (ratatui's hook).

use std::io;
use std::io::IsTerminal;
use std::time::{Duration, Instant};

use ratatui::crossterm::event;
use ratatui::crossterm::event::{Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use tandem_linux::interrupt::Interrupt;
use thiserror::Error;

use crate::top::Top;
use crate::top::screen::draw::draw;
use crate::top::screen::{Key, Screen, Then};
use crate::top::text::notes;
use crate::watch::LookError;

/// Maximum delay before a signal is noticed.
const SLICE: Duration = Duration::from_millis(50);

/// Why the loop ended, other than by a key or a signal.
#[derive(Debug, Error)]
pub enum TerminalError {
    /// The terminal cannot be used.
    #[error("cannot use this terminal: {0}; --batch needs none")]
    Terminal(#[from] io::Error),
    /// The host cannot be observed.
    #[error(transparent)]
    Look(#[from] LookError),
}

/// Options of the display.
#[derive(Clone, Copy, Debug)]
pub struct View {
    /// Length of an interval.
    pub interval: Duration,
    /// Whether VMs are unfolded initially.
    pub with_vcpus: bool,
    /// Whether colours are enabled.
    pub colour: bool,
    /// Whether the process runs as root, for the advice in the notes.
    pub is_root: bool,
}

/// Shows the intervals of a `top` that has begun, until the user leaves.
pub fn show(top: &mut Top, view: View) -> Result<(), TerminalError> {
    // Watch signals before changing the terminal, so that none leaves it changed.
    let interrupt = Interrupt::watch()?;
    let mut terminal = ratatui::try_init()?;
    let shown = run(top, view, &interrupt, &mut terminal);
    let restored = ratatui::try_restore();
    shown?;
    Ok(restored?)
}

fn run(
    top: &mut Top,
    view: View,
    interrupt: &Interrupt,
    terminal: &mut ratatui::DefaultTerminal,
) -> Result<(), TerminalError> {
    let mut screen = Screen::new(view.with_vcpus);
    let mut next = Instant::now() + view.interval;
    let mut is_old = true;
    let reads_stdin = io::stdin().is_terminal();
    while interrupt.check().is_ok() {
        if is_old {
            terminal.draw(|frame| {
                draw(&mut screen, frame.area(), frame.buffer_mut(), view.colour);
            })?;
        }
        let left = next.saturating_duration_since(Instant::now());
        let wait = left.min(SLICE);
        if reads_stdin && is_gone(wait)? {
            break;
        }
        is_old = event::poll(if reads_stdin { Duration::ZERO } else { wait })?;
        if is_old {
            match event::read()? {
                Event::Key(pressed) if pressed.kind != KeyEventKind::Release => {
                    if let Some(key) = key(pressed)
                        && screen.key(key) == Then::Quit
                    {
                        break;
                    }
                }
                _ => {}
            }
        }
        let now = Instant::now();
        if now >= next {
            let interval = top.interval()?;
            let notes = notes(&interval, view.is_root);
            screen.take(interval, notes);
            // A late interval is not made up for.
            next = (next + view.interval).max(now);
            is_old = true;
        }
    }
    Ok(())
}

/// Waits for input; returns whether the terminal is gone.
/// Reading events from a terminal that is gone never returns, because the end of file is read again and again.
fn is_gone(wait: Duration) -> io::Result<bool> {
    let stdin = io::stdin();
    let mut fds = [PollFd::new(&stdin, PollFlags::IN)];
    let timeout = Timespec { tv_sec: 0, tv_nsec: wait.min(SLICE).subsec_nanos().into() };
    match poll(&mut fds, Some(&timeout)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => return Err(error.into()),
    }
    let gone = PollFlags::HUP | PollFlags::ERR | PollFlags::NVAL;
    Ok(fds[0].revents().intersects(gone))
}

fn key(pressed: KeyEvent) -> Option<Key> {
    if pressed.modifiers.contains(KeyModifiers::CONTROL) {
        return (pressed.code == KeyCode::Char('c')).then_some(Key::Interrupt);
    }
    Some(match pressed.code {
        KeyCode::Up => Key::Up,
        KeyCode::Down => Key::Down,
        KeyCode::PageUp => Key::PageUp,
        KeyCode::PageDown => Key::PageDown,
        KeyCode::Home => Key::Home,
        KeyCode::End => Key::End,
        KeyCode::Left => Key::Left,
        KeyCode::Right => Key::Right,
        KeyCode::Enter => Key::Enter,
        KeyCode::Esc => Key::Escape,
        KeyCode::Backspace => Key::Backspace,
        KeyCode::Char(letter) => Key::Char(letter),
        _ => return None,
    })
}
