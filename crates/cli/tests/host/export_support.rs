//! Shared by the tests of the exporter: starting it and VMs, and scraping.

use tandem_testing::vm as vm_support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub use vm_support::Guard;

/// The binary with these arguments.
pub fn tandem(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
    command.args(args);
    command
}

/// A name that no other VM has.
pub fn name(first: char) -> String {
    format!("{first}{}", std::process::id())
}

/// Whether VMs can be found and measured here, by whom KVM's figures can be read; if not, says why.
pub fn runs_here(test: &str) -> bool {
    if let Err(error) = tandem_linux::cgroup::open(&tandem_linux::ProcFs::host()) {
        println!("skipped: {test}: {error}");
        return false;
    }
    if !rustix::process::geteuid().is_root() {
        println!("skipped: {test}: reading other processes' KVM descriptors needs root");
        return false;
    }
    let kvm = std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm");
    if let Err(error) = kvm {
        println!("skipped: {test}: /dev/kvm: {error}");
        return false;
    }
    true
}

/// A microVM of two vCPUs that compute and block in turn, once it runs.
pub fn start_vm(name: &str) -> Guard {
    let args = ["--vcpus", "2", "--workload", "bursty", "--backend", "kvm"];
    vm_support::start_vm(env!("CARGO_BIN_EXE_tandem").as_ref(), name, &args)
}

/// A running exporter.
pub struct Exporter {
    /// Where it listens.
    pub address: SocketAddr,
    _child: Guard,
}

/// Starts an exporter on a free port; returns once it answers.
pub fn start_exporter(more: &[&str]) -> Exporter {
    let args = ["host", "export", "--listen", "127.0.0.1:0"];
    let mut child =
        Guard(tandem(&[args.as_slice(), more].concat()).stderr(Stdio::piped()).spawn().unwrap());
    let mut said = String::new();
    BufReader::new(child.0.stderr.as_mut().unwrap()).read_line(&mut said).unwrap();
    let address = said
        .trim_end()
        .strip_prefix("info: metrics at http://")
        .and_then(|rest| rest.strip_suffix("/metrics"))
        .unwrap_or_else(|| panic!("it says where it listens: {said:?}"));
    Exporter { address: address.parse().unwrap(), _child: child }
}

/// What is at a path: the body. Who asks by HTTP/1.0 gets it in one piece.
pub fn get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut connection = TcpStream::connect(address)?;
    connection.set_read_timeout(Some(Duration::from_secs(20)))?;
    write!(connection, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    Ok(body.to_owned())
}

/// The value of the first series that begins so and has this in it.
#[allow(dead_code, reason = "Prometheus looks for itself")]
pub fn value(page: &str, beginning: &str, part: &str) -> Option<f64> {
    let mut lines = page.lines();
    let line = lines.find(|line| line.starts_with(beginning) && line.contains(part))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

/// Asks again and again until there is an answer; fails after a minute.
pub fn wait_for<T>(what: &str, mut ask: impl FnMut() -> Option<T>) -> T {
    let end = Instant::now() + Duration::from_secs(60);
    loop {
        if let Some(answer) = ask() {
            return answer;
        }
        assert!(Instant::now() < end, "{what}: not within a minute");
        std::thread::sleep(Duration::from_millis(50));
    }
}
