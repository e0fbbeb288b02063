//! Discovery and sampler with this machine's own processes: threads that come and go, and real QEMUs.
//!
//! This is a program of its own, without libtest, because it is also the VM that it discovers: it starts itself again.
//! Harness and helper are those of the live tests of `tandem-linux`.

use tandem_testing::{harness, helper};

use std::fs;
use std::process::{Child, ExitCode, Stdio};

use tandem_host::discovery::{Discovery, DiscoveryOptions, Vm};
use tandem_host::vmm::Vmm;
use tandem_linux::ProcFs;
use tandem_linux::sampler::Sampler;
use tandem_linux::thread::Pid;

use harness::{Skip, Test};
use helper::{Helper, StateDir, vcpu_threads, wait_until};

/// All tests, in the order in which they run.
const ALL: &[(&str, Test)] = &[
    ("discovery_follows_real_threads", discovery),
    ("a_real_qemu_is_known_by_its_threads", qemu_by_names),
    ("a_real_qemu_is_known_by_qmp", qemu_by_qmp),
];

fn main() -> ExitCode {
    match helper::role().as_deref() {
        Some("vm") => helper::be_a_vm(),
        Some(other) => panic!("no helper is called '{other}'"),
        None => harness::run(ALL),
    }
}

/// A process that ends with its test.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Options for a process without KVM vCPUs, which the operator names.
fn without_kvm(pid: Pid) -> DiscoveryOptions {
    DiscoveryOptions { without_kvm: vec![pid.to_string()], ..DiscoveryOptions::default() }
}

fn discovery() -> Result<(), Skip> {
    let mut vm = Helper::start("vm", &["disco", "3"]);
    let procfs = ProcFs::host();
    let options = without_kvm(vm.pid());
    let mut discovery = Discovery::new(options, procfs.clone()).expect("no patterns");
    let mut find = |pid| {
        let scan = discovery.scan().expect("it scans");
        scan.vms.into_iter().find(|vm| vm.process.pid == pid)
    };
    let first = find(vm.pid()).expect("it is found at once");
    assert_eq!((first.name.as_str(), first.vmm, first.unidentified), ("disco", Vmm::Tandem, 0));
    let threads: Vec<_> = first.vcpus.iter().map(|vcpu| vcpu.thread).collect();
    assert_eq!(threads, vcpu_threads(vm.pid()));
    let mut sampler = Sampler::new(procfs);
    let before = sampler.sample(&threads[0]).expect("a sample");
    sampler.sample(&threads[1]).expect("a sample");
    vm.tell("end 1");
    wait_until("the sampler says that it is gone", || {
        sampler.sample(&threads[1]).is_err_and(|error| error.is_gone())
    });
    assert!(sampler.sample(&threads[0]).expect("a sample").ran >= before.ran);
    let second = find(vm.pid()).expect("it is still there");
    let indexes: Vec<u32> = second.vcpus.iter().map(|vcpu| vcpu.index.0).collect();
    assert_eq!((second.id, indexes), (first.id, vec![0, 2]));
    vm.tell("start disco/vcpu5");
    vm.next_line();
    // Its name is set a moment after its start.
    wait_until("the new vCPU is found", || {
        find(vm.pid()).is_some_and(|vm| vm.vcpus.iter().any(|vcpu| vcpu.index.0 == 5))
    });
    let pid = vm.pid();
    vm.kill();
    assert!(find(pid).is_none(), "and it goes with its process");
    Ok(())
}

/// Starts a QEMU with two vCPUs that never run.
fn start_qemu(arguments: &[&str]) -> Result<Process, Skip> {
    let command = std::process::Command::new("qemu-system-x86_64")
        .args(["-S", "-nodefaults", "-display", "none", "-smp", "2", "-m", "64"])
        .args(arguments)
        .stdin(Stdio::null())
        .spawn();
    command.map(Process).map_err(|error| Skip(format!("no qemu-system-x86_64: {error}")))
}

/// Scans until the VM of this process has two vCPUs with threads.
fn find_two_vcpus(qemu: &mut Process, options: DiscoveryOptions) -> Result<Vm, Skip> {
    let mut discovery = Discovery::new(options, ProcFs::host()).expect("good patterns");
    let mut found = None;
    wait_until("QEMU's vCPUs are found", || {
        let vms = discovery.scan().expect("it scans").vms;
        let pid = Pid(qemu.0.id());
        found = vms.into_iter().find(|vm| vm.process.pid == pid && vm.vcpus.len() == 2);
        found.is_some() || qemu.0.try_wait().expect("it can be asked").is_some()
    });
    found.ok_or_else(|| Skip("this QEMU does not start".to_owned()))
}

fn qemu_by_names() -> Result<(), Skip> {
    let name = "guest=live,,named,debug-threads=on";
    let mut qemu = start_qemu(&["-accel", "tcg,thread=multi", "-name", name])?;
    let options = without_kvm(Pid(qemu.0.id()));
    let vm = find_two_vcpus(&mut qemu, options)?;
    assert_eq!((vm.name.as_str(), vm.vmm, vm.unidentified), ("live,named", Vmm::Qemu, 0));
    for (n, vcpu) in vm.vcpus.iter().enumerate() {
        let stat = vcpu.thread.stat(&ProcFs::host()).expect("it lives");
        assert_eq!((vcpu.index.0 as usize, stat.comm), (n, format!("CPU {n}/TCG")));
    }
    Ok(())
}

fn qemu_by_qmp() -> Result<(), Skip> {
    if let Err(error) = fs::File::options().read(true).write(true).open("/dev/kvm") {
        return Err(Skip(format!("needs KVM: /dev/kvm: {error}")));
    }
    let dir = StateDir::new();
    let socket = dir.0.join("vm.qmp");
    let qmp = format!("unix:{},server=on,wait=off", socket.display());
    let name = "guest=asked,debug-threads=off";
    let mut qemu = start_qemu(&["-accel", "kvm", "-name", name, "-qmp", &qmp])?;
    let options = DiscoveryOptions {
        qmp_sockets: vec![format!("{}/*.qmp", dir.0.display())],
        ..DiscoveryOptions::default()
    };
    let vm = find_two_vcpus(&mut qemu, options)?;
    assert_eq!((vm.name.as_str(), vm.vmm, vm.unidentified), ("asked", Vmm::Qemu, 0));
    let indexes: Vec<u32> = vm.vcpus.iter().map(|vcpu| vcpu.index.0).collect();
    assert_eq!(indexes, [0, 1]);
    assert_ne!(vm.vcpus[0].thread.tid, vm.process.tid, "the main thread is no vCPU");
    Ok(())
}
