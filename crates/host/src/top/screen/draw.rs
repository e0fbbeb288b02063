//! Draws [`Screen`]: totals, the table of VMs, other threads of the host, a legend and the keys.
//!
//! ```text
//! title                                        shown VMs, sort key
//! totals                                       use of the pCPUs
//! VM vCPU RUN … HALT due recv lag% waits for   a line per VM, or vCPU
//! host processes │ other threads of VMs        run time outside vCPUs
//! notes, legend, keys
//! ```
//!
//! It fits 80 × 24; more room allows longer names, more culprits and more processes.
//! Colour is never the only carrier of meaning.

use ratatui::buffer::Buffer;
use ratatui::layout::{Alignment, Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line as TextLine, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, StatefulWidget, Table, Widget};
use tandem_model::{Nanos, VcpuTimes};

use crate::columns::{Field, Tone, cut};
use crate::top::figures;
use crate::top::screen::{Line, Screen};
use crate::top::{Culprit, TopInterval};

const KEYS: &str = "q quit  ? help  ↑↓ select  ⏎ unfold  v all  s sort  / search  p pause";

/// The help: the figures, then the keys.
fn help() -> Vec<String> {
    let before = "Columns sum to 100 % of the wall time, per vCPU; – is not measured.";
    let after = "waits for: tasks that ran on its pCPUs meanwhile, with their part of RDY

q, Esc, Ctrl-C  leave             ↑ ↓ PgUp PgDn Home End  move the cursor
Enter, → ←      unfold, fold      v  vCPUs of all VMs
s, S            next sort key     KEYS
/               search by name    p, Space   stop, go on";
    let after = after.replace("KEYS", &figures::sort_help());
    let lines = [before.to_owned()].into_iter().chain(figures::help());
    lines.chain(after.lines().map(str::to_owned)).collect()
}

/// Draws the screen, with or without colours.
pub fn draw(screen: &mut Screen, area: Rect, buffer: &mut Buffer, colour: bool) {
    let Some(interval) = screen.interval.clone() else {
        Paragraph::new("measuring …").render(area, buffer);
        return;
    };
    let listed = (area.height.saturating_sub(18) / 3).clamp(1, 5);
    let [title, totals, table, beside, notes, legend, keys] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Min(3),
        Constraint::Length(listed + 1),
        Constraint::Length(1),
        Constraint::Length(1),
        Constraint::Length(1),
    ])
    .areas(area);
    let faint = Style::new().add_modifier(Modifier::DIM);
    text(&title_text(screen, &interval), title, buffer, bold());
    text(&totals_text(&interval), totals, buffer, Style::new());
    draw_table(screen, &interval, table, buffer, colour);
    draw_others(&interval, beside, buffer);
    text(&notes_text(&screen.notes), notes, buffer, faint);
    text(&figures::legend(), legend, buffer, faint);
    let typed = format!("/{}_  Enter keeps, Esc clears", screen.search);
    let last = if screen.is_typing { &typed } else { KEYS };
    text(last, keys, buffer, faint);
    if screen.shows_help {
        draw_help(&screen.notes, area, buffer);
    }
}

fn bold() -> Style {
    Style::new().add_modifier(Modifier::BOLD)
}

/// Draws a line.
fn text(text: &str, area: Rect, buffer: &mut Buffer, style: Style) {
    let line = cut(text, usize::from(area.width));
    Paragraph::new(line).style(style).render(area, buffer);
}

fn title_text(screen: &Screen, interval: &TopInterval) -> String {
    let shown = screen.vms().len();
    let search =
        if screen.search.is_empty() { String::new() } else { format!(" · /{}", screen.search) };
    let paused = if screen.is_paused { " · STOPPED" } else { "" };
    format!(
        "tandem host top · {} · {:.2} s · {} pCPUs · {shown} of {} VMs · by {}{search}{paused}",
        interval.source,
        interval.seconds,
        interval.host.pcpus,
        interval.found,
        screen.sort_key().heading(),
    )
}

fn totals_text(interval: &TopInterval) -> String {
    let host = &interval.host;
    let pcpus = |time: Nanos| format!("{:.2}", in_pcpus(time, interval));
    let of = |time: Option<Nanos>| time.map_or_else(|| "–".to_owned(), pcpus);
    let length = Nanos((interval.seconds * 1e9) as u64);
    format!(
        "vCPUs {}  VM threads {}  host {}  kernel {}  idle {}  unseen {}",
        pcpus(host.vcpus),
        pcpus(host.vm_threads),
        pcpus(host.tasks),
        pcpus(host.kernel),
        of(host.idle),
        of(host.unseen(length)),
    )
}

fn in_pcpus(time: Nanos, interval: &TopInterval) -> f64 {
    time.as_secs_f64() / interval.seconds.max(1e-9)
}

fn notes_text(notes: &[String]) -> String {
    match notes {
        [] => String::new(),
        [one] => one.clone(),
        [first, rest @ ..] => format!("{first} (? for {} more)", rest.len()),
    }
}

fn colour_of(tone: Tone, colour: bool) -> Style {
    let style = match tone {
        Tone::Plain => Style::new(),
        Tone::Faint => Style::new().add_modifier(Modifier::DIM),
        Tone::Warn => Style::new().fg(Color::Yellow),
        Tone::Bad => bold().fg(Color::Red),
    };
    if colour { style } else { Style { fg: None, ..style } }
}

fn right(text: Span<'static>) -> Cell<'static> {
    Cell::new(TextLine::from(text).alignment(Alignment::Right))
}

fn draw_table(
    screen: &mut Screen,
    interval: &TopInterval,
    area: Rect,
    buffer: &mut Buffer,
    colour: bool,
) {
    let figures = figures::shown(interval);
    // vCPU and the figures, with a blank before each column except the first.
    let fixed = 5 + figures.iter().map(|figure| figure.width + 1).sum::<u16>() + 1;
    let names = area.width.saturating_sub(fixed);
    let name_width = (names * 2 / 5).clamp(8, 32);
    let culprit_width = names.saturating_sub(name_width);
    let mut widths = vec![name_width, 4];
    widths.extend(figures.iter().map(|figure| figure.width));
    widths.push(culprit_width);
    let sorted_by = screen.sort_key().heading();
    let heading = |heading: &'static str| {
        let style =
            if heading == sorted_by { bold().add_modifier(Modifier::REVERSED) } else { bold() };
        Span::styled(heading, style)
    };
    let headings = figures.iter().map(|figure| figure.heading);
    let header = [Cell::new(heading("VM"))]
        .into_iter()
        .chain(["vCPU"].into_iter().chain(headings).map(|text| right(heading(text))))
        .chain([Cell::new(heading("waits for"))]);
    let header = Row::new(header);
    let (lines, chosen) = screen.lines();
    if lines.is_empty() {
        let why = if screen.search.is_empty() {
            "no VM to show".to_owned()
        } else {
            format!("no VM's name has '{}' in it", screen.search)
        };
        text(&why, area, buffer, Style::new());
        return;
    }
    let rows: Vec<Row<'static>> = lines
        .iter()
        .map(|line| {
            let (name, count, times, culprits) = match line {
                Line::Vm(vm) => {
                    let mark = if screen.is_unfolded(vm) { '▾' } else { '▸' };
                    let name = format!("{mark}{}", vm.called);
                    (name, vm.vcpus.len().to_string(), vm.times, &vm.culprits)
                }
                Line::Vcpu(_, vcpu) => {
                    let name = format!("   on {}", vcpu.allowed);
                    (name, vcpu.index.to_string(), vcpu.times, &vcpu.culprits)
                }
            };
            let field = |figure: &&figures::Figure| match line {
                Line::Vm(vm) => figure.vm_field(vm),
                Line::Vcpu(_, vcpu) => figure.vcpu_field(vcpu),
            };
            let cell = |field: Field| {
                let style = colour_of(field.tone, colour);
                right(Span::styled(field.text, style))
            };
            let mut cells = vec![Cell::new(cut(&name, usize::from(name_width)))];
            cells.push(cell(count.into()));
            cells.extend(figures.iter().map(field).map(cell));
            let culprits = culprits_text(culprits, &times, usize::from(culprit_width));
            cells.push(Cell::new(culprits));
            Row::new(cells)
        })
        .collect();
    screen.table.select(chosen);
    let table = Table::new(rows, widths.into_iter().map(Constraint::Length))
        .header(header)
        .column_spacing(1)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED));
    StatefulWidget::render(table, area, buffer, &mut screen.table);
}

/// Formats as many culprits as fit, each with its part of RDY.
fn culprits_text(culprits: &[Culprit], times: &VcpuTimes, width: usize) -> String {
    let mut shown = String::new();
    for (name, part) in figures::culprit_parts(culprits, times) {
        let next = format!("{part:.0}% {name}");
        if shown.is_empty() {
            shown = cut(&next, width);
        } else if shown.chars().count() + 2 + next.chars().count() <= width {
            shown = format!("{shown}, {next}");
        } else {
            break;
        }
    }
    shown
}

/// Draws the run time outside vCPUs: host processes on the left, other threads of VMs on the right.
fn draw_others(interval: &TopInterval, area: Rect, buffer: &mut Buffer) {
    let [left, _, right] =
        Layout::horizontal([Constraint::Fill(1), Constraint::Length(2), Constraint::Fill(1)])
            .areas(area);
    let processes = interval.host.top_tasks.iter().map(|task| {
        let cgroup = task.cgroup.as_deref().unwrap_or("");
        (task.time, format!("{} {}  {cgroup}", task.name, task.pid))
    });
    list("host processes (no VMs)", processes, interval, left, buffer);
    let mut threads: Vec<(Nanos, String)> = interval
        .vms
        .iter()
        .flat_map(|vm| {
            let threads = vm.threads.iter();
            threads.map(|thread| (thread.time, format!("{}: {}", vm.called, thread.name)))
        })
        .collect();
    threads.sort_by_key(|(time, _)| std::cmp::Reverse(*time));
    list("other threads of VMs", threads.into_iter(), interval, right, buffer);
}

fn list(
    heading: &str,
    lines: impl Iterator<Item = (Nanos, String)>,
    interval: &TopInterval,
    area: Rect,
    buffer: &mut Buffer,
) {
    text(heading, Rect { height: 1, ..area }, buffer, bold());
    for (row, (time, line)) in area.rows().skip(1).zip(lines) {
        let line = format!("{:5.2} {line}", in_pcpus(time, interval));
        text(&line, row, buffer, Style::new());
    }
}

fn draw_help(notes: &[String], area: Rect, buffer: &mut Buffer) {
    let mut lines = help();
    if !notes.is_empty() {
        lines.push(String::new());
        lines.extend_from_slice(notes);
    }
    let width = area.width.min(80);
    let height = area.height.min(lines.len() as u16 + 2);
    let inside = Rect {
        x: area.x + (area.width - width) / 2,
        y: area.y + (area.height - height) / 2,
        width,
        height,
    };
    let block = Block::bordered().title("any key closes this");
    let room = block.inner(inside);
    Clear.render(inside, buffer);
    block.render(inside, buffer);
    for (row, line) in room.rows().zip(lines) {
        text(&line, row, buffer, Style::new());
    }
}
