//! Reading workloads: results and errors.

use super::*;
use crate::random::Dist;
use crate::workload::{ObjectRef, Pick, Repeat, Space, SpinKind};

const HEAD: &str = "name = \"t\"\n[objects]\n\
    hash = { kind = \"spin\", count = 64 }\n\
    user = { kind = \"spin\", lock = \"ticket\", space = \"user\" }\n\
    m = \"mutex\"\nn = \"mutex\"\nc = \"condition\"\nb = \"barrier\"\n\
    s = { kind = \"semaphore\", units = 1 }\nq = { kind = \"queue\", capacity = 4 }\n\
    forks = { kind = \"mutex\", count = 5 }\n\
    [[role]]\nname = \"giver\"\nprogram = [ { signal = \"c\" }, { put = \"q\" } ]\n\
    [[role]]\nname = \"taker\"\nprogram = [ { get = \"q\" } ]\n\
    [[role]]\nname = \"r\"\nthreads = 4\n";

fn with(program: &str) -> Result<Workload, String> {
    let text = format!("{HEAD}program = {program}\n");
    from_text("t.toml", &text).map_err(|error| error.to_string())
}

fn ops(program: &str) -> Vec<Op> {
    let workload = with(program).unwrap();
    workload.roles[2].program.clone()
}

fn error(program: &str) -> String {
    match with(program) {
        Err(error) => error,
        Ok(_) => panic!("accepted: {program}"),
    }
}

#[test]
fn loops_and_locked_blocks_are_flattened() {
    let program = "[ { forever = [ { compute = \"exp(2us)\" }, \
        { locked = \"hash[random]\", do = [ { compute = \"300ns\" } ] }, \
        { repeat = 3, do = [ \"work\" ] } ] } ]";
    let hash = ObjectRef { first: 0, count: 64, pick: Pick::Random };
    assert_eq!(
        ops(program),
        [
            Op::Loop { repeat: Repeat::Forever, end: 9, depth: 0 },
            Op::Compute(Dist::Exponential(2_000)),
            Op::Lock(hash),
            Op::Compute(Dist::Constant(300)),
            Op::Unlock(hash),
            Op::Loop { repeat: Repeat::Times(3), end: 8, depth: 1 },
            Op::Work,
            Op::Again { begin: 5 },
            Op::Again { begin: 0 },
            Op::Exit,
        ]
    );
}

#[test]
fn objects_are_numbered_in_file_order() {
    let workload = with("[ { lock = \"m\" }, { unlock = \"m\" } ]").unwrap();
    assert_eq!(workload.objects.len(), 64 + 7 + 5);
    assert_eq!(workload.object_names[63], "hash");
    assert_eq!(workload.objects[64], Object::Spin { kind: SpinKind::Ticket, space: Space::User });
    let first = 65;
    assert_eq!(
        workload.roles[2].program[0],
        Op::Lock(ObjectRef { first, count: 1, pick: Pick::Fixed(0) })
    );
}

#[test]
fn valid_programs_are_accepted() {
    for program in [
        "[ { lock = \"forks[own]\" }, { lock = \"forks[next]\" }, { unlock = \"forks\" }, { unlock = \"forks\" } ]",
        "[ { lock = \"m\" }, { wait = \"c\", mutex = \"m\" }, { unlock = \"m\" } ]",
        "[ { lock = \"user\" }, { sleep = \"1ms\" }, { unlock = \"user\" } ]",
        "[ { forever = [ \"yield\" ] } ]",
        "[ { forever = [ { barrier = \"b\" } ] } ]",
        "[ { acquire = \"s\" }, { io = \"exp(1ms)\" }, { release = \"s\" }, { unmap = \"1us\" }, { kernel = \"1us\" } ]",
        "[ \"work\", \"exit\" ]",
    ] {
        with(program).unwrap_or_else(|error| panic!("{program}: {error}"));
    }
}

#[test]
fn invalid_programs_name_line_and_fix() {
    for (program, said) in [
        ("[ { unlock = \"m\" } ]", "{ lock = \"m\" } comes first"),
        ("[ { lock = \"m\" } ]", "add { unlock = \"m\" }"),
        ("[ { lock = \"m\" }, \"exit\" ]", "{ unlock = \"m\" } comes first"),
        ("[ { lock = \"m\" }, { lock = \"m\" } ]", "would wait for itself"),
        ("[ { lock = \"hash[random]\" }, { lock = \"hash[random]\" } ]", "may be the same"),
        ("[ { forever = [ { lock = \"m\" } ] } ]", "still held at its end"),
        (
            "[ { lock = \"m\" }, { forever = [ { unlock = \"m\" }, { compute = \"1us\" } ] } ]",
            "locked outside",
        ),
        (
            "[ { lock = \"hash[1]\" }, { sleep = \"1ms\" }, { unlock = \"hash\" } ]",
            "space = \"user\"",
        ),
        (
            "[ { lock = \"hash[1]\" }, { lock = \"m\" }, { unlock = \"m\" }, { unlock = \"hash\" } ]",
            "no thread may lock",
        ),
        ("[ { lock = \"hash\" }, { unlock = \"hash\" } ]", "so which?"),
        ("[ { lock = \"hash[64]\" }, { unlock = \"hash\" } ]", "hash[63]"),
        ("[ { lock = \"hash[1]\" }, { unlock = \"hash[1]\" } ]", "write \"hash\""),
        ("[ { lock = \"hash[1\" } ]", "closing ]"),
        ("[ { lock = \"hsah[1]\" } ]", "did you mean `hash`"),
        ("[ { lock = \"q\" } ]", "a spin lock or mutex is needed"),
        ("[ { put = \"m\" } ]", "a queue is needed"),
        ("[ { signal = \"m\" } ]", "a condition variable is needed"),
        ("[ { wait = \"c\", mutex = \"m\" } ]", "does not hold it"),
        ("[ { wait = \"c\" } ]", "no `mutex`"),
        ("[ { forever = [ \"work\" ] } ]", "stop the clock"),
        ("[ { forever = [ { compute = \"0ns\" } ] } ]", "stop the clock"),
        ("[ { forever = [ { compute = \"1us\" } ] }, \"work\" ]", "never reached"),
        ("[ { computer = \"1us\" } ]", "did you mean `compute`"),
        ("[ \"wrok\" ]", "did you mean \"work\""),
        ("[ \"compute\" ]", "needs a value"),
        ("[ { work = 1 } ]", "write \"work\""),
        ("[ { request = \"1ms\" } ]", "\"request\" has no value"),
        ("[ \"request\", { compute = \"1us\" } ]", "no \"work\" ends the \"request\""),
        ("[ { compute = 5 } ]", "such as \"4us\""),
        ("[ { compute = \"5\" } ]", "a number and a unit"),
        ("[ { compute = \"1us\", sleep = \"1us\" } ]", "two steps"),
        ("[ { repeat = 0, do = [] } ]", "1 … "),
        ("[ { repeat = 2 } ]", "no `do`"),
        ("{ compute = \"1us\" }", "a list is needed"),
        (
            "[{repeat=2,do=[{repeat=2,do=[{repeat=2,do=[{repeat=2,do=[{repeat=2,do=[]}]}]}]}]}]",
            "4 deep",
        ),
        (
            "[{lock=\"m\"},{lock=\"n\"},{lock=\"forks[0]\"},{lock=\"forks[1]\"},{lock=\"forks[2]\"}]",
            "at most 4 locks",
        ),
    ] {
        let error = error(program);
        assert!(error.contains(said), "{program}: {error}");
        assert!(error.starts_with("t.toml:21: "), "{program}: {error}");
    }
}

#[test]
fn waits_without_provider_are_rejected() {
    let error = |objects: &str, program: &str| {
        let text = format!("name = \"t\"\n[objects]\n{objects}\n[[role]]\nprogram = {program}\n");
        from_text("t.toml", &text).unwrap_err().to_string()
    };
    for (objects, program, said) in [
        (
            "m = \"mutex\"\nc = \"condition\"",
            "[{lock=\"m\"},{wait=\"c\",mutex=\"m\"},{unlock=\"m\"}]",
            "none signals",
        ),
        ("q = { kind = \"queue\", capacity = 1 }", "[{get=\"q\"}]", "none puts"),
        ("q = { kind = \"queue\", capacity = 1 }", "[{put=\"q\"}]", "none gets"),
        ("s = { kind = \"semaphore\", units = 0 }", "[{acquire=\"s\"}]", "no thread releases"),
        ("s = \"semaphore\"", "[]", "units = 1"),
        ("s = { kind = \"queue\" }", "[]", "no `capacity`"),
        ("s = { kind = \"mutx\" }", "[]", "did you mean \"mutex\""),
        ("s = { kind = \"mutex\", units = 1 }", "[]", "`units` is no key"),
        ("s = { count = 1 }", "[]", "no `kind`"),
        ("b = { kind = \"barrier\", count = 2 }", "[]", "parties = 2"),
        (
            "s = { kind = \"spin\", lock = \"paravirtual\", space = \"user\" }",
            "[]",
            "leave space out",
        ),
        ("\"a b\" = \"mutex\"", "[]", "cannot be an object's name"),
    ] {
        let error = error(objects, program);
        assert!(error.contains(said), "{objects}: {error}");
    }
}

#[test]
fn threads_and_sizes_of_roles() {
    let role = |line: &str| {
        let text =
            format!("name = \"t\"\n[[role]]\n{line}\nprogram = [ {{ compute = \"1us\" }} ]\n");
        from_text("t.toml", &text)
            .map(|workload| workload.roles[0].clone())
            .map_err(|error| error.to_string())
    };
    assert_eq!(role("threads = 16").unwrap().threads, Threads::Count(16));
    assert_eq!(role("threads = \"16\"").unwrap().threads, Threads::Count(16));
    assert_eq!(role("threads = \"0.5 per vcpu\"").unwrap().threads, Threads::PerVcpu(0.5));
    assert_eq!(role("working_set = \"2MiB\"").unwrap().working_set_kib, 2048);
    for (line, said) in [
        ("threads = 0", "1 … 100000"),
        ("threads = \"many\"", "\"1 per vcpu\""),
        ("threads = \"0 per vcpu\"", "0.001 … 1000"),
        ("working_set = 64", "a string"),
        ("working_set = \"64KB\"", "64KiB"),
        ("weight = -1", "1 … 262144"),
        ("pins = [-1]", "0 … 4095"),
        ("pin = [0]", "did you mean `pins`"),
    ] {
        let error = role(line).unwrap_err();
        assert!(error.contains(said), "{line}: {error}");
    }
}

#[test]
fn workload_must_fit_vm() {
    let text = "name = \"t\"\n[objects]\nb = { kind = \"barrier\", parties = 4 }\n\
        [[role]]\nthreads = \"1 per vcpu\"\npins = [3]\nprogram = [ { barrier = \"b\" } ]\n";
    let workload = from_text("t.toml", text).unwrap();
    assert_eq!(fits(&workload, 4, 4), Ok(()));
    assert!(fits(&workload, 2, 2).unwrap_err().contains("vCPUs 0 … 1"));
    let text = text.replace("pins = [3]\n", "");
    let workload = from_text("t.toml", &text).unwrap();
    assert!(fits(&workload, 2, 2).unwrap_err().contains("only 2 threads"));
}

#[test]
fn threads_of_a_role_share_iterations() {
    let program = ops("[ { repeat = \"20 / threads\", do = [ { compute = \"1us\" } ] } ]");
    let shared = Op::Loop { repeat: Repeat::Shared(20), end: 3, depth: 0 };
    assert_eq!(program[0], shared);
    for wrong in ["many", "0 / threads", "20 / vcpus", "20/", "/ threads"] {
        let error = error(&format!("[ {{ repeat = \"{wrong}\", do = [ \"work\" ] }} ]"));
        assert!(error.contains("\"16 / threads\""), "{error}");
    }
    // Some threads may have no iteration, and then no time passes.
    let error =
        error("[ { forever = [ { repeat = \"1 / threads\", do = [ { compute = \"1us\" } ] } ] } ]");
    assert!(error.contains("stop the clock"), "{error}");
}
