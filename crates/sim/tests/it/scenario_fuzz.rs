//! No text makes the reader of scenarios panic, and every refusal names a place.
//!
//! Texts are scenarios with pieces removed, doubled, swapped, or replaced by words and values that are valid elsewhere in the language.
//! They are much nearer to typing errors, and to the reader's special cases, than random bytes.

use proptest::prelude::*;
use tandem_sim::scenario::load;
use tandem_sim::scenario::load::{LoadError, Setting, Source};

const RIGHT: &str = "duration = \"10ms\"
warmup = \"1ms\"
seed = 3
[machine]
pcpus = 4
pcpus_per_llc = 2
mode = \"virtual\"
costs = { vm_exit = 900 }
[host]
scheduler = \"cfs\"
halt_poll = 0
cfs = { latency = \"6ms\" }
pause_loop = { policy = \"stock\", window = 4096 }
[policies]
flexw = { gain = 0.5 }
[[workload]]
name = \"w\"
[workload.objects]
hash = { kind = \"spin\", count = 4, lock = \"ticket\" }
m = \"mutex\"
c = \"condition\"
b = { kind = \"barrier\", parties = 2, wait = \"spin\" }
s = { kind = \"semaphore\", units = 2 }
q = { kind = \"queue\", capacity = 8 }
[[workload.role]]
name = \"r\"
threads = \"1 per vcpu\"
working_set = \"64KiB\"
pins = [0, 1]
program = [{ forever = [{ compute = \"exp(2us)\" }, { lock = \"hash[random]\" }, { unlock = \"hash\" }, { put = \"q\" }, \"work\" ] }]
[[workload.role]]
name = \"t\"
threads = 2
program = [{ repeat = 3, do = [{ get = \"q\" }, { locked = \"m\", do = [{ wait = \"c\", mutex = \"m\" }] }, { broadcast = \"c\" }, { barrier = \"b\" } ] }, \"exit\"]
[[vm]]
name = \"a\"
count = 2
vcpus = 2
pins = [\"0-1\", \"3\"]
idle = \"haltpoll(100us)\"
workload = \"w\"
";

/// Replacements in addition to pieces of the text itself.
const FOREIGN: [&str; 21] = [
    "-1",
    "0",
    "99999999999999999999",
    "1e308",
    "nan",
    "inf",
    "true",
    "\"\"",
    "[]",
    "{}",
    "'",
    "\\",
    "\u{0}",
    "µ",
    "9999999999s",
    "-",
    "[[",
    "\"1 per vcpu\"",
    "\"hash[own]\"",
    "forever",
    "*",
];

/// The text in pieces.
fn pieces() -> Vec<&'static str> {
    RIGHT.split_inclusive(|c: char| c.is_whitespace() || "[]{}=,\"()".contains(c)).collect()
}

#[derive(Clone, Debug)]
enum Edit {
    Remove(usize),
    Double(usize),
    Swap(usize, usize),
    Replace(usize, usize),
}

fn edit() -> impl Strategy<Value = Edit> {
    let at = 0usize..10_000;
    prop_oneof![
        at.clone().prop_map(Edit::Remove),
        at.clone().prop_map(Edit::Double),
        (at.clone(), at.clone()).prop_map(|(one, other)| Edit::Swap(one, other)),
        (at.clone(), at).prop_map(|(one, other)| Edit::Replace(one, other)),
    ]
}

fn edited(edits: &[Edit]) -> String {
    let mut text = pieces();
    let words: Vec<&str> = text.iter().copied().chain(FOREIGN).collect();
    for edit in edits {
        let length = text.len();
        match *edit {
            _ if length == 0 => break,
            Edit::Remove(at) => {
                text.remove(at % length);
            }
            Edit::Double(at) => text.insert(at % length, text[at % length]),
            Edit::Swap(one, other) => text.swap(one % length, other % length),
            Edit::Replace(at, by) => text[at % length] = words[by % words.len()],
        }
    }
    text.concat()
}

#[test]
fn base_text_is_valid() {
    assert_eq!(edited(&[]), RIGHT);
    load::from_text("s.toml", RIGHT).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 3000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_text_panics(edits in prop::collection::vec(edit(), 1..4)) {
        if let Err(error) = load::from_text("s.toml", &edited(&edits)) {
            let placed = matches!(error, LoadError::Wrong { .. });
            prop_assert!(placed && error.to_string().starts_with("s.toml:"), "{error}");
        }
    }

    #[test]
    fn no_setting_panics(key in "[a-z_0-9.*]{1,20}|(vm|workload|host|machine)\\.[a-z0*]{1,3}\\.[a-z_]{1,9}", value in "\\PC{1,12}") {
        if let Ok(setting) = Setting::parse(&format!("{key}={value}")) {
            let mut source = Source::from_text("s.toml", RIGHT).unwrap();
            source.set(setting);
            if let Err(error) = source.scenario() {
                prop_assert!(matches!(error, LoadError::Wrong { .. }), "{error}");
            }
        }
    }
}
