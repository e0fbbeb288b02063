//! A VM for tests that observe VMs from outside.

use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// A child that is killed on drop.
pub struct Guard(pub Child);

impl Drop for Guard {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts a VM with these arguments of `tandem vm run` and waits until it is ready.
pub fn start_vm(tandem: &Path, name: &str, args: &[&str]) -> Guard {
    let mut child = Command::new(tandem)
        .args(["vm", "run", "--name", name, "--control-stdio"])
        .args(args)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("ready"), "{line}");
    Guard(child)
}
