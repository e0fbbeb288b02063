//! Pictures of synthetic intervals against golden files, and the effect of keys.
//!
//! `TANDEM_UPDATE_GOLDEN=1 cargo test -p tandem-host --lib screen` rewrites the files; review the difference as text.

use std::path::Path;

use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::style::Color;

use super::draw::draw;
use super::*;
use crate::top::text::notes;

/// The example of `top`.
fn shown() -> TopInterval {
    crate::top::tests::all()
}

fn screen() -> Screen {
    let mut screen = Screen::new(false);
    screen.take(shown(), notes(&shown(), false));
    screen
}

fn press(screen: &mut Screen, keys: &str) {
    for letter in keys.chars() {
        assert_eq!(screen.key(Key::Char(letter)), Then::GoOn, "{letter}");
    }
}

fn picture(screen: &mut Screen, width: u16, height: u16, colour: bool) -> Buffer {
    let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
    let drawn = terminal.draw(|frame| draw(screen, frame.area(), frame.buffer_mut(), colour));
    drawn.unwrap().buffer.clone()
}

/// A picture without colours and trailing blanks.
fn text(screen: &mut Screen, width: u16, height: u16) -> String {
    let picture = picture(screen, width, height, false);
    let rows = picture.content.chunks(usize::from(width));
    let lines = rows.map(|row| {
        let line: String = row.iter().map(|cell| cell.symbol()).collect();
        format!("{}\n", line.trim_end())
    });
    lines.collect()
}

fn names(screen: &Screen) -> Vec<&str> {
    screen.vms().iter().map(|vm| vm.name.as_str()).collect()
}

fn golden(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("TANDEM_UPDATE_GOLDEN").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert_eq!(text, expected, "{} is not what is shown", path.display());
}

#[test]
fn a_screen_of_80_by_24() {
    golden("top-80x24.txt", &text(&mut screen(), 80, 24));
}

#[test]
fn screen_of_120_by_40_with_vcpus() {
    let mut screen = screen();
    press(&mut screen, "v");
    golden("top-120x40.txt", &text(&mut screen, 120, 40));
}

#[test]
fn help_lists_keys_and_missing_figures() {
    let mut screen = screen();
    press(&mut screen, "?");
    golden("top-help-80x24.txt", &text(&mut screen, 80, 24));
    press(&mut screen, "q");
    let without = text(&mut screen, 80, 24);
    assert!(!without.contains("any key"), "a key closes it: {without}");
}

#[test]
fn ready_has_its_colours_and_without_colour_none() {
    let mut screen = screen();
    let colours = |picture: &Buffer, figure: &str| -> Vec<Color> {
        let cells = picture.content.windows(figure.chars().count() + 1);
        let matching = cells.filter(|cells| {
            let shown: String = cells[1..].iter().map(|cell| cell.symbol()).collect();
            shown == figure && cells[0].symbol() == " "
        });
        matching.map(|cells| cells[1].fg).collect()
    };
    let coloured = picture(&mut screen, 80, 24, true);
    assert!(colours(&coloured, "20").contains(&Color::Red), "20 % is bad");
    assert_eq!(colours(&coloured, "6.0"), [Color::Yellow], "6 % is fair");
    let plain = picture(&mut screen, 80, 24, false);
    assert!(plain.content.iter().all(|cell| cell.fg == Color::Reset));
}

#[test]
fn vms_are_sorted_by_severity_or_key() {
    let mut screen = screen();
    assert_eq!(names(&screen), ["hurt", "calm"]);
    press(&mut screen, "n");
    assert_eq!(names(&screen), ["calm", "hurt"]);
    press(&mut screen, "c");
    assert_eq!(names(&screen), ["calm", "hurt"], "0.9 pCPUs and 0.7");
    press(&mut screen, "g");
    assert_eq!(names(&screen), ["hurt", "calm"], "the largest lag comes first");
    for heading in ["VM", "RDY", "LIM", "recv", "lag%", "VM", "RDY"] {
        press(&mut screen, "s");
        assert_eq!(screen.sort_key().heading(), heading);
    }
    press(&mut screen, "S");
    assert_eq!(screen.sort_key(), SortKey::Name);
}

#[test]
fn cursor_stays_on_its_line() {
    let mut screen = screen();
    screen.key(Key::Enter);
    assert_eq!(screen.lines().0.len(), 2, "there is no cursor yet");
    screen.key(Key::Down);
    screen.key(Key::Down);
    screen.key(Key::Down);
    screen.key(Key::Right);
    assert_eq!(screen.lines().0.len(), 3, "calm has one vCPU");
    assert_eq!(screen.lines().1, Some(1));
    press(&mut screen, "n");
    assert_eq!(screen.lines().1, Some(0), "with its VM");
    screen.key(Key::Down);
    screen.key(Key::Left);
    assert_eq!((screen.lines().0.len(), screen.lines().1), (2, Some(0)));
    screen.key(Key::End);
    assert_eq!(screen.lines().1, Some(1));
    screen.key(Key::PageUp);
    assert_eq!(screen.lines().1, Some(0));
}

#[test]
fn a_search_shows_those_whose_names_match() {
    let mut screen = screen();
    press(&mut screen, "/HURq");
    assert!(names(&screen).is_empty());
    let shown = text(&mut screen, 80, 24);
    assert!(shown.contains("no VM's name has 'HURq'"), "{shown}");
    assert!(shown.contains("/HURq_"), "the typed text: {shown}");
    screen.key(Key::Backspace);
    assert_eq!(screen.key(Key::Enter), Then::GoOn);
    assert_eq!(names(&screen), ["hurt"]);
    assert!(text(&mut screen, 80, 24).contains("1 of 3 VMs · by RDY · /HUR"));
    press(&mut screen, "/ca");
    assert_eq!(screen.key(Key::Escape), Then::GoOn, "leaves the search only");
    assert_eq!(names(&screen).len(), 2);
}

#[test]
fn a_stopped_screen_keeps_its_interval() {
    let mut screen = screen();
    press(&mut screen, "p");
    let mut later = shown();
    later.vms.clear();
    screen.take(later.clone(), Vec::new());
    assert_eq!(names(&screen).len(), 2);
    assert!(text(&mut screen, 80, 24).contains("STOPPED"));
    press(&mut screen, "p");
    screen.take(later, Vec::new());
    assert!(text(&mut screen, 80, 24).contains("no VM to show"));
}

#[test]
fn keys_that_leave_leave() {
    for key in [Key::Escape, Key::Char('q'), Key::Interrupt] {
        assert_eq!(screen().key(key), Then::Quit, "{key:?}");
    }
    let mut typing = screen();
    press(&mut typing, "/q");
    assert_eq!(typing.key(Key::Interrupt), Then::Quit);
}

#[test]
fn small_sizes_and_hostile_names_are_safe() {
    let mut interval = shown();
    interval.vms[0].called = "a\x1b[2Jb\n".to_owned();
    let mut screen = Screen::new(true);
    assert!(text(&mut screen, 80, 24).starts_with("measuring"));
    screen.take(interval, vec!["a note".to_owned()]);
    for (width, height) in [(1, 1), (5, 3), (40, 10), (80, 24), (300, 100)] {
        let shown = text(&mut screen, width, height);
        assert!(!shown.contains('\x1b'), "{shown:?}");
        press(&mut screen, "?");
        text(&mut screen, width, height);
        press(&mut screen, "?");
    }
    assert!(text(&mut screen, 80, 24).contains("▾a?[2Jb?"));
}
