//! The processes that the live tests need besides themselves.
//!
//! `vm` stands for a VMM: threads named as those of a microVM, asleep. On its standard input it is
//! told `end N` (thread N ends) and `start NAME` (thread 0 starts another), and ends with the input.
//! `daemon` stands for one that is about to be killed: it changes all it can of a VM in a loop,
//! in an order given by a seed, until something ends it.

use std::env;
use std::io::BufRead;
use std::io::Write;
use std::io::stdin;
use std::io::stdout;
use std::path::Path;
use std::process::ExitCode;
use std::sync::mpsc::Receiver;
use std::sync::mpsc::Sender;
use std::sync::mpsc::channel;
use std::thread::Builder;

use rand_core::Rng;
use rand_core::SeedableRng;
use rand_pcg::Pcg32;
use tandem_linux::ProcFs;
use tandem_linux::actuator::Actuator;
use tandem_linux::actuator::ActuatorError;
use tandem_linux::affinity::affinity;
use tandem_linux::cgroup;
use tandem_linux::cgroup::CgroupPath;
use tandem_linux::cgroup::Quota;
use tandem_linux::thread::Pid;
use tandem_linux::thread::ThreadRef;
use tandem_linux::thread::Tid;
use tandem_policy::PcpuSet;
use tandem_policy::Weight;

/// The variable that makes this program a helper.
const ROLE: &str = "TANDEM_LIVE_ROLE";

/// The helper that this process is to be, if any.
pub fn role() -> Option<String> {
    env::var(ROLE).ok()
}

/// A command that starts this program as a helper.
pub fn command(role: &str) -> std::process::Command {
    let mut command = std::process::Command::new("/proc/self/exe");
    command.env(ROLE, role);
    command
}

/// Is the helper.
pub fn run(role: &str) -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match role {
        "vm" => vm(&arguments[0], number(&arguments[1])),
        "daemon" => daemon(&arguments),
        other => panic!("no helper is called '{other}'"),
    }
}

fn number(text: &str) -> u64 {
    text.parse().expect("a number")
}

fn gettid() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}

/// What a thread of the VM is told.
enum Order {
    Start(String),
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
    while let Ok(Order::Start(name)) = orders.recv() {
        children.push(start_thread(name));
    }
}

fn vm(name: &str, vcpus: u64) -> ExitCode {
    let mut threads: Vec<Option<Sender<Order>>> = (0..vcpus)
        .map(|n| Some(start_thread(format!("{name}/vcpu{n}"))))
        .collect();
    println!("ready");
    stdout().flush().expect("the test reads");
    for line in stdin().lock().lines() {
        let line = line.expect("the test writes text");
        match line.split_once(' ') {
            Some(("end", n)) => threads[number(n) as usize] = None,
            Some(("start", name)) => {
                let first = threads[0].as_ref().expect("thread 0 lives");
                first
                    .send(Order::Start(name.to_owned()))
                    .expect("thread 0 listens");
            }
            _ => panic!("what is '{line}'?"),
        }
    }
    ExitCode::SUCCESS
}

/// What the daemon works on.
struct Subject {
    actuator: Actuator,
    threads: Vec<ThreadRef>,
    home: CgroupPath,
    own: CgroupPath,
    prefix: String,
    all: PcpuSet,
}

fn daemon(arguments: &[String]) -> ExitCode {
    let [state_dir, seed, pid, own, prefix] = arguments else {
        panic!("daemon STATE_DIR SEED PID OWN PREFIX");
    };
    let procfs = ProcFs::host();
    let pid = Pid(number(pid) as u32);
    let controller = cgroup::open(&procfs).expect("a controller");
    let threads = crate::host::vcpu_threads(pid);
    let home = controller.cgroup_of(&threads[0]).expect("a home");
    let (actuator, _) = Actuator::open(controller, Path::new(state_dir)).expect("the lock");
    let mut subject = Subject {
        actuator,
        threads,
        home,
        own: CgroupPath(own.clone()),
        prefix: prefix.clone(),
        all: affinity(Tid(gettid())).expect("an affinity"),
    };
    let mut random = Pcg32::seed_from_u64(number(seed));
    println!("ready");
    stdout().flush().expect("the test reads");
    loop {
        if let Err(error) = subject.change(&mut random) {
            println!("{error}");
            return ExitCode::FAILURE;
        }
    }
}

impl Subject {
    /// Changes one thing.
    fn change(&mut self, random: &mut Pcg32) -> Result<(), ActuatorError> {
        let mut pick = |count: usize| random.next_u32() as usize % count;
        let group = self.home.child(&format!("{}{}", self.prefix, pick(2)));
        let thread = self.threads[pick(self.threads.len())];
        match pick(16) {
            0..4 => {
                let name = group.name().to_owned();
                self.actuator.create_group(&self.home, &name)?;
                self.actuator.move_thread(&thread, &group)?;
            }
            4..7 => {
                let pcpu = self.all.iter().nth(pick(self.all.len()));
                self.actuator
                    .set_affinity(&thread, &pcpu.into_iter().collect())?;
            }
            7..10 => {
                let weight = Weight((2 + pick(5000)) as f64);
                self.actuator.set_weight(&self.own, weight)?;
            }
            10..12 if self.actuator.controller().exists(&group) => {
                self.actuator.set_weight(&group, Weight(300.0))?;
            }
            12 => {
                let quota_us = 50_000 + pick(50_000) as u64;
                let period_us = 50_000;
                let cap = Some(Quota {
                    quota_us,
                    period_us,
                });
                self.actuator.set_quota(&self.own, cap)?;
            }
            13 | 14 => {
                let report = self.actuator.release_group(&group)?;
                assert!(report.is_complete(), "{report}");
            }
            15 if pick(4) == 0 => {
                let report = self.actuator.restore()?;
                assert!(report.is_complete(), "{report}");
            }
            _ => {}
        }
        Ok(())
    }
}
