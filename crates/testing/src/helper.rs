//! Helper processes of live tests.
//!
//! The helper `vm` imitates a VMM: its threads have the names of a microVM's threads and sleep.
//! It reads orders from stdin: `end N` (thread N ends), `start NAME` (thread 0 starts another thread),
//! `spin N` (thread N spins) and `rest N` (thread N sleeps again).
//! It exits at the end of stdin.
//!
//! A test program starts itself again as a helper, with the role in an environment variable.

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

#[allow(unused_imports, reason = "some tests do not kill")]
pub use crate::kills::{kill_often, kills};

/// Environment variable with the role of a helper.
const ROLE: &str = "TANDEM_LIVE_ROLE";

/// Returns the role of this process if it is a helper.
pub fn role() -> Option<String> {
    env::var(ROLE).ok()
}

/// Returns the command that starts this program as a helper.
pub fn command(role: &str) -> Command {
    let mut command = Command::new("/proc/self/exe");
    command.env(ROLE, role);
    command
}

/// Parses a number in a helper's arguments.
pub fn number(text: &str) -> u64 {
    text.parse().expect("a number")
}

/// Returns the id of the calling thread.
pub fn gettid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// An order to a thread of the VM.
enum Order {
    Start(String),
    Spin,
    Rest,
}

/// Starts a thread, prints its id, and returns the sender of its orders; the thread ends when the sender is dropped.
fn start_thread(name: String) -> Sender<Order> {
    let (sender, orders) = channel();
    let (tell, told) = channel();
    let body = move || {
        tell.send(gettid()).expect("the maker waits");
        follow_orders(&orders);
    };
    Builder::new().name(name).spawn(body).expect("a thread");
    println!("{}", told.recv().expect("the thread starts"));
    stdout().flush().expect("the test reads");
    sender
}

fn follow_orders(orders: &Receiver<Order>) {
    let mut children = Vec::new();
    while let Ok(order) = orders.recv() {
        match order {
            Order::Start(name) => children.push(start_thread(name)),
            Order::Spin => while matches!(orders.try_recv(), Err(TryRecvError::Empty)) {},
            Order::Rest => {}
        }
    }
}

/// Runs the helper `vm`, with arguments NAME VCPUS.
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
            _ => panic!("unknown order '{line}'"),
        }
    }
    ExitCode::SUCCESS
}

/// Timeout of expected events, long enough for a heavily loaded machine.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Waits for a condition; panics at the timeout.
pub fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !is_true() {
        assert!(begin.elapsed() < TIMEOUT, "timeout while waiting until {what}");
        sleep(Duration::from_millis(2));
    }
}

/// Returns the vCPU threads of a helper VM in the order of their indices.
pub fn vcpu_threads(pid: Pid) -> Vec<ThreadRef> {
    let procfs = ProcFs::host();
    let mut threads = Vec::new();
    for entry in fs::read_dir(procfs.process(pid).join("task")).expect("its threads") {
        let name = entry.expect("an entry").file_name();
        let tid = Tid(name.to_str().and_then(|n| n.parse().ok()).expect("a number"));
        // A thread may end meanwhile.
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

/// A helper process, which is killed on drop.
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

    /// Starts a helper as another user and waits until it is ready.
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

    /// Returns its process id.
    pub fn pid(&self) -> Pid {
        Pid(self.child.id())
    }

    /// Returns the next line of its output.
    pub fn next_line(&mut self) -> String {
        self.output.next().expect("the helper lives").expect("it writes text")
    }

    /// Sends it an order.
    pub fn tell(&mut self, order: &str) {
        let input = self.input.as_mut().expect("it listens");
        writeln!(input, "{order}").expect("it listens");
    }

    /// Kills it if it is still running.
    pub fn end(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// Sends SIGTERM and waits for its exit.
    #[allow(dead_code, reason = "some tests only kill")]
    pub fn finish(mut self) -> std::process::ExitStatus {
        let pid = rustix::process::Pid::from_child(&self.child);
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it lives");
        self.child.wait().expect("it is ours")
    }

    /// Kills it with SIGKILL; panics if it has ended before.
    pub fn kill(mut self) {
        let ended = self.child.try_wait().expect("it can be asked");
        if ended.is_some() {
            panic!("the helper exited unexpectedly: {}", self.next_line());
        }
    }
}

impl Drop for Helper {
    fn drop(&mut self) {
        self.end();
    }
}

static COUNT: AtomicU32 = AtomicU32::new(0);

/// Returns a name that is unique among tests and concurrent runs of them.
pub fn unique(what: &str) -> String {
    let n = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("tandem-live-{}-{what}{n}-", std::process::id())
}

/// A folder for a journal, which is removed on drop.
pub struct StateDir(pub PathBuf);

impl Default for StateDir {
    fn default() -> StateDir {
        StateDir::new()
    }
}

impl StateDir {
    /// Makes an empty folder.
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
