//! The processes that the live tests need besides themselves, of which the first is here.
//!
//! `vm` stands for a VMM: threads named as those of a microVM, asleep. On its standard input it is
//! told `end N` (thread N ends), `start NAME` (thread 0 starts another) and `spin N` (thread N never sleeps again until it is told
//! `rest N`), and ends with the input.
//!
//! A test program is its own helpers: it starts itself again with a variable that says which one to be.

use std::io::{BufRead, BufReader, Lines, Write, stdin, stdout};
use std::path::PathBuf;
use std::process::{Child, ChildStdin, ChildStdout, Command, ExitCode, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{Receiver, Sender, TryRecvError, channel};
use std::thread::{Builder, sleep};
use std::time::{Duration, Instant};
use std::{env, fs};

use tandem_linux::ProcFs;
use tandem_linux::thread::{Pid, ThreadRef, ThreadStat, Tid};

#[allow(unused_imports, reason = "some tests kill nobody")]
pub use crate::kills::{kill_often, kills};

/// The variable that makes this program a helper.
const ROLE: &str = "TANDEM_LIVE_ROLE";

/// The helper that this process is to be, if any.
pub fn role() -> Option<String> {
    env::var(ROLE).ok()
}

/// This program as a helper.
pub fn command(role: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.env(ROLE, role);
    command
}

/// A number among a helper's arguments.
pub fn number(text: &str) -> u64 {
    text.parse().expect("a number")
}

/// The calling thread.
pub fn gettid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// What a thread of the VM is told.
enum Order {
    Start(String),
    Spin,
    Rest,
}

/// Starts a thread that says its number and then sleeps until it is told to end.
fn start_thread(name: String) -> Sender<Order> {
    let (sender, orders) = channel();
    let (tell, told) = channel();
    let body = move || {
        tell.send(gettid()).expect("the maker waits");
        sleep_until_told(&orders);
    };
    Builder::new().name(name).spawn(body).expect("a thread");
    println!("{}", told.recv().expect("the thread starts"));
    stdout().flush().expect("the test reads");
    sender
}

fn sleep_until_told(orders: &Receiver<Order>) {
    let mut children = Vec::new();
    while let Ok(order) = orders.recv() {
        match order {
            Order::Start(name) => children.push(start_thread(name)),
            Order::Spin => while matches!(orders.try_recv(), Err(TryRecvError::Empty)) {},
            Order::Rest => {}
        }
    }
}

/// Is a VM: arguments NAME VCPUS.
pub fn be_a_vm() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let (name, vcpus) = (&arguments[0], number(&arguments[1]));
    let mut threads: Vec<Option<Sender<Order>>> =
        (0..vcpus).map(|n| Some(start_thread(format!("{name}/vcpu{n}")))).collect();
    println!("ready");
    stdout().flush().expect("the test reads");
    for line in stdin().lock().lines() {
        let line = line.expect("the test writes text");
        match line.split_once(' ') {
            Some(("end", n)) => threads[number(n) as usize] = None,
            Some((order @ ("spin" | "rest"), n)) => {
                let thread = threads[number(n) as usize].as_ref().expect("it lives");
                let order = if order == "spin" { Order::Spin } else { Order::Rest };
                thread.send(order).expect("it listens");
            }
            Some(("start", name)) => {
                let first = threads[0].as_ref().expect("thread 0 lives");
                first.send(Order::Start(name.to_owned())).expect("thread 0 listens");
            }
            _ => panic!("what is '{line}'?"),
        }
    }
    ExitCode::SUCCESS
}

/// Long enough for anything that must happen to happen, however loaded the machine is.
const PATIENCE: Duration = Duration::from_secs(60);

/// Waits for what must come true.
pub fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_true() {
        assert!(begin.elapsed() < PATIENCE, "waited in vain until {what}");
        sleep(Duration::from_millis(2));
    }
}

/// The vCPU threads of a helper VM, by number.
pub fn vcpu_threads(pid: Pid) -> Vec<ThreadRef> {
    let procfs = ProcFs::host();
    let mut threads = Vec::new();
    for entry in fs::read_dir(procfs.process(pid).join("task")).expect("its threads") {
        let name = entry.expect("an entry").file_name();
        let tid = Tid(name.to_str().and_then(|n| n.parse().ok()).expect("a number"));
        // A thread may end while we look.
        let Ok(stat) = ThreadStat::read(&procfs.task(pid, tid)) else {
            continue;
        };
        if let Some((_, index)) = stat.comm.rsplit_once("/vcpu") {
            let start = stat.start;
            threads.push((index.parse::<u32>().expect("an index"), ThreadRef { pid, tid, start }));
        }
    }
    threads.sort();
    threads.into_iter().map(|(_, thread)| thread).collect()
}

/// A helper process, killed when it is dropped.
pub struct Helper {
    child: Child,
    input: Option<ChildStdin>,
    output: Lines<BufReader<ChildStdout>>,
}

impl Helper {
    /// Starts a helper and waits until it is ready.
    pub fn start(role: &str, arguments: &[&str]) -> Helper {
        Helper::started(command(role).args(arguments))
    }

    /// The same as another user.
    #[allow(dead_code, reason = "some tests have no other users")]
    pub fn start_as(user: u32, role: &str, arguments: &[&str]) -> Helper {
        use std::os::unix::process::CommandExt;

        Helper::started(command(role).args(arguments).uid(user))
    }

    fn started(command: &mut Command) -> Helper {
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program can be started again");
        let input = child.stdin.take();
        let output = BufReader::new(child.stdout.take().expect("it is piped")).lines();
        let mut helper = Helper { child, input, output };
        while helper.next_line() != "ready" {}
        helper
    }

    /// Its process.
    pub fn pid(&self) -> Pid {
        Pid(self.child.id())
    }

    /// What it says next.
    pub fn next_line(&mut self) -> String {
        self.output.next().expect("the helper lives").expect("it writes text")
    }

    /// Tells it something.
    pub fn tell(&mut self, order: &str) {
        let input = self.input.as_mut().expect("it listens");
        writeln!(input, "{order}").expect("it listens");
    }

    /// Ends it, if it has not ended by itself.
    pub fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Asks it to end, by SIGTERM, and waits.
    #[allow(dead_code, reason = "some tests only kill")]
    pub fn finish(mut self) -> std::process::ExitStatus {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it lives");
        self.child.wait().expect("it is ours")
    }

    /// Ends it by kill -9; it must have been alive.
    pub fn kill(mut self) {
        let ended = self.child.try_wait().expect("it can be asked");
        if ended.is_some() {
            panic!("the helper ended by itself: {}", self.next_line());
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.end();
    }
}

static COUNT: AtomicU32 = AtomicU32::new(0);

/// A name that no other test uses, nor another run of these tests at the same time.
pub fn unique(what: &str) -> String {
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("tandem-live-{}-{what}{n}-", std::process::id())
}

/// A folder for a journal, removed when it is dropped.
pub struct StateDir(pub PathBuf);

impl Default for StateDir {
    fn default() -> StateDir {
        StateDir::new()
    }
}

impl StateDir {
    /// An empty one.
    pub fn new() -> StateDir {
        let path = std::env::temp_dir().join(unique("state"));
        fs::create_dir_all(&path).expect("a temporary folder");
        StateDir(path)
    }
}

impl Drop for StateDir {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}
