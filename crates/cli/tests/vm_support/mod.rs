//! Shared by tests that look at VMs from outside: a VM that does not outlive the test.

use std::io::BufRead;
use std::io::BufReader;
use std::process::Child;
use std::process::Command;
use std::process::Stdio;

/// A child that does not outlive the test.
pub struct Guard(pub Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A VM with these arguments of `tandem vm run`, once its vCPUs run.
pub fn start_vm(name: &str, args: &[&str]) -> Guard {
    let mut child = Command::new(env!("CARGO_BIN_EXE_tandem"))
        .args(["vm", "run", "--name", name, "--control-stdio"])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap())
        .read_line(&mut line)
        .unwrap();
    assert!(line.contains("ready"), "{line}");
    Guard(child)
}
