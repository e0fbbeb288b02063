//! Shared code of the tests of the exporter: starting it and VMs, and scraping.

use tandem_testing::vm as vm_support;

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub use vm_support::Guard;

/// Returns the command with these arguments.
pub fn tandem(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tandem"));
    command.args(args);
    command
}

/// Returns a unique name of a VM.
pub fn name(first: char) -> String {
    format!("{first}{}", std::process::id())
}

/// Returns whether VMs can be found and measured here, including KVM's statistics; if not, prints the reason.
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

/// Starts a microVM with two vCPUs that alternately compute and block, and waits until it runs.
pub fn start_vm(name: &str) -> Guard {
    let args = ["--vcpus", "2", "--workload", "bursty", "--backend", "kvm"];
    vm_support::start_vm(env!("CARGO_BIN_EXE_tandem").as_ref(), name, &args)
}

/// A running exporter.
pub struct Exporter {
    /// Its address.
    pub address: SocketAddr,
    _child: Guard,
}

/// Starts an exporter on a free port, and waits until it answers.
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
        .unwrap_or_else(|| panic!("it prints no address: {said:?}"));
    Exporter { address: address.parse().unwrap(), _child: child }
}

/// Returns the body at a path; the request uses HTTP/1.0, so that the body is not chunked.
pub fn get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut connection = TcpStream::connect(address)?;
    connection.set_read_timeout(Some(Duration::from_secs(20)))?;
    write!(connection, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
    let mut answer = String::new();
    connection.read_to_string(&mut answer)?;
    let (_, body) = answer.split_once("\r\n\r\n").unwrap_or_default();
    Ok(body.to_owned())
}

/// Returns the value of the first series with this beginning and this part.
#[allow(dead_code, reason = "unused by the tests with Prometheus")]
pub fn value(page: &str, beginning: &str, part: &str) -> Option<f64> {
    let mut lines = page.lines();
    let line = lines.find(|line| line.starts_with(beginning) && line.contains(part))?;
    line.rsplit_once(' ')?.1.parse().ok()
}

/// Polls until there is an answer; fails after a minute.
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
