//! Arbitrary input from tenants: command lines, thread names, answers at QMP sockets.
//!
//! A scan never fails on it, reports only names that are in the input, and uses bounded memory.
//! `fuzz` explains how to continue for hours.

use tandem_testing::fuzz;

#[global_allocator]
static ALLOCATOR: fuzz::Counting = fuzz::Counting;

use std::io::Write;
use std::net::Shutdown;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;
use std::{fs, io};

use fuzz::{Mutator, below, bytes, each_input, most_held};
use serde_json::Value;
use tandem_host::discovery::{Discovery, DiscoveryOptions};
use tandem_host::qmp::{OpenSocket, QmpVcpu, SocketPattern, SocketWalk, query_vcpus};
use tandem_host::vmm::{ThreadPattern, VcpuName, Vmm};
use tandem_linux::ProcFs;
use tandem_linux::thread::{Pid, Tid};
use tandem_model::VcpuId;

const COMMAND_LINES: [&str; 7] = [
    "/usr/bin/qemu-system-x86_64\0-name\0guest=web,debug-threads=on\0-machine\0pc,accel=kvm\0-smp\x002,maxcpus=4\0-nodefaults\0",
    "qemu-system-x86_64\0--name=debug-threads=on,guest=a,,b\0-S\0",
    "qemu\0-name\0web\0",
    "/usr/bin/firecracker\0--id\0f1\0--api-sock\0/run/f1.sock\0",
    "crosvm\0run\0--name\0c\0--cpus\x002\0",
    "lkvm\0run\0--name=k\0",
    "cloud-hypervisor\0--cpus\0boot=2\0",
];

const COMMS: [&str; 9] = [
    "CPU 0/KVM",
    "CPU 3/TCG",
    "ALL CPUs/TCG",
    "fc_vcpu 0",
    "vcpu12",
    "crosvm_vcpu1",
    "kvm-vcpu-2",
    "web/vcpu63",
    "IO mon_iothread",
];

/// A host in a folder, with one process that holds two KVM vCPUs.
struct FakeHost {
    root: tempfile::TempDir,
}

impl FakeHost {
    fn new() -> FakeHost {
        let host = FakeHost { root: fuzz::folder() };
        let process = host.process();
        fs::create_dir_all(process.join("fd")).unwrap();
        for n in 0..2 {
            let file = process.join(format!("fd/{}", 10 + n));
            symlink(format!("anon_inode:kvm-vcpu:{n}"), file).unwrap();
        }
        for tid in 100..103 {
            host.name(tid, b"qemu-system-x86");
        }
        host
    }

    fn process(&self) -> PathBuf {
        self.root.path().join("proc/100")
    }

    /// Names a thread; the process has the name of its first one.
    fn name(&self, tid: u32, comm: &[u8]) {
        let begin = format!("{tid} (").into_bytes();
        let end = b") S 1 1 1 0 -1 0 0 0 0 0 0 0 0 0 20 0 3 0 1000 0 0\n";
        let line = [&begin, comm, &end[..]].concat();
        let task = self.process().join(format!("task/{tid}"));
        fs::create_dir_all(&task).unwrap();
        fs::write(task.join("stat"), &line).unwrap();
        if tid == 100 {
            fs::write(self.process().join("stat"), &line).unwrap();
        }
    }
}

#[test]
fn command_lines_and_thread_names_are_read_safely() {
    let host = FakeHost::new();
    let lines = Mutator::new(COMMAND_LINES, &["-name", "--name=", "guest=", ",,", "\0", "="]);
    let comms = Mutator::new(COMMS, &["/", "/vcpu", "CPU ", "vcpu", "-"]);
    let mut named = 0;
    // The scan of a line may hold a megabyte; its check here, more.
    each_input("command lines", 2_500, 4 << 20, |random| {
        let line = lines.input(random);
        fs::write(host.process().join("cmdline"), &line).unwrap();
        for tid in 100..103 {
            let mut comm = match below(random, 8) {
                0 => bytes(random, 16),
                1 => comms.example(random).to_vec(),
                _ => comms.input(random),
            };
            // As kept by the kernel.
            comm.retain(|&byte| byte != 0);
            comm.truncate(15);
            host.name(tid, &comm);
            let text = String::from_utf8_lossy(&comm);
            if let Some(VcpuName { vm: Some(vm), .. }) = VcpuName::parse(&text) {
                assert!(text.starts_with(&format!("{vm}/vcpu")), "{text:?}");
            }
        }
        let procfs = ProcFs::at(host.root.path());
        let mut discovery = Discovery::new(DiscoveryOptions::default(), procfs).unwrap();
        let mut scan = None;
        let held = most_held(|| scan = Some(discovery.scan().unwrap()));
        assert!(held <= 1 << 20, "a look held {held} bytes");
        let scan = scan.unwrap();
        assert!(!scan.vms.is_empty(), "it holds KVM vCPUs");
        for vm in &scan.vms {
            assert_eq!(vm.process.pid, Pid(100));
            assert!(vm.vcpus.len() + vm.unidentified <= 2, "{vm:?}");
            assert!(!vm.name.chars().any(char::is_control), "{:?}", vm.name);
            // Each character may be escaped.
            assert!(vm.name.chars().count() <= 128 * 10, "{:?}", vm.name);
            named += u32::from(!vm.name.ends_with("-100"));
        }
        // Each VMM's name is part of the line.
        let text = String::from_utf8_lossy(&line);
        let args: Vec<&str> = text.split('\0').collect();
        for vmm in Vmm::ALL {
            if let Some(name) = vmm.vm_name(&args) {
                let is_there = text.contains(&name) || name.contains(',') && vmm == Vmm::Qemu;
                assert!(!name.is_empty() && is_there, "{vmm}: {name:?} of {text:?}");
            }
        }
    });
    println!("{named} VMs had names of their own");
}

#[test]
fn patterns_are_compiled_or_refused() {
    let examples = [
        "my-vcpu-{n}",
        "vm*-cpu{n}",
        "/run/qemu/*.qmp",
        "/var/lib/libvirt/qemu/domain-*/{a,b}.sock",
    ];
    let mutator = Mutator::new(examples, &["{n}", "{", "}", "**", "[!a-z]", "\\", ","]);
    each_input("patterns", 150, 64 << 20, |random| {
        let text = mutator.input(random);
        let text = String::from_utf8_lossy(&text);
        match ThreadPattern::new(&text) {
            Ok(pattern) => {
                assert!(pattern.index("vm7-cpu12").is_none_or(|vcpu| [7, 12].contains(&vcpu.0)))
            }
            Err(error) => assert!(error.to_string().len() < 1_000, "{error}"),
        }
        if let Ok(pattern) = SocketPattern::new(&text) {
            let walked = SocketWalk::new(vec![pattern], PathBuf::from("/nonexistent")).go_on();
            assert!(walked.is_round_over && walked.sockets.is_empty());
        }
    });
}

/// A process (this one) that answers any request at a socket with a given reply.
struct Listener {
    folder: tempfile::TempDir,
    replies: Sender<Vec<u8>>,
}

impl Listener {
    fn new() -> Listener {
        let folder = fuzz::folder();
        let listener = UnixListener::bind(folder.path().join("qmp")).unwrap();
        let (replies, told) = channel::<Vec<u8>>();
        std::thread::spawn(move || {
            for reply in told {
                let (mut client, _) = listener.accept().unwrap();
                // A client that has read enough closes the connection.
                let _ = client.write_all(&reply);
                let _ = client.shutdown(Shutdown::Write);
                let _ = io::copy(&mut client, &mut io::sink());
            }
        });
        Listener { folder, replies }
    }
}

/// Parses an answer through a JSON tree; `None` if it is no answer, or if a tree cannot hold it.
fn as_a_tree(reply: &[u8]) -> Option<Vec<QmpVcpu>> {
    let messages = serde_json::Deserializer::from_slice(reply).into_iter::<Value>();
    let mut answers = Vec::new();
    for (number, message) in messages.enumerate() {
        let mut message = message.ok()?;
        let fields = message.as_object_mut()?;
        if number == 0 {
            fields.get("QMP")?;
            continue;
        }
        if let Some(answer) = fields.remove("return").filter(|answer| !answer.is_null()) {
            answers.push(answer);
        }
        if answers.len() == 2 {
            break;
        }
    }
    let vcpus = answers.get(1)?.as_array()?.iter().map(|vcpu| {
        let number = |name: &str| u32::try_from(vcpu.get(name)?.as_u64()?).ok();
        Some(QmpVcpu { index: VcpuId(number("cpu-index")?), tid: Tid(number("thread-id")?) })
    });
    vcpus.collect()
}

#[test]
fn qmp_replies_are_read_or_refused() {
    let greeting = "{\"QMP\": {\"version\": {\"qemu\": {\"micro\": 2, \"minor\": 2, \"major\": 7}, \"package\": \"Debian\"}, \"capabilities\": [\"oob\"]}}\r\n";
    let event = "{\"timestamp\": {\"seconds\": 1, \"microseconds\": 2}, \"event\": \"RESUME\", \"data\": {\"a\": [1, 2.5, null]}}\r\n";
    let vcpu = |n: u32| {
        format!(
            "{{\"thread-id\": {}, \"props\": {{\"core-id\": {n}, \"thread-id\": 0, \"socket-id\": 0}}, \"qom-path\": \"/machine/unattached/device[{n}]\", \
             \"cpu-index\": {n}, \"target\": \"x86_64\"}}",
            100 + n
        )
    };
    let vcpus: Vec<String> = (0..4).map(vcpu).collect();
    let answered = |answer: &str| {
        format!("{greeting}{{\"return\": {{}}}}\r\n{event}{{\"return\": {answer}}}\r\n")
    };
    let examples = [
        answered(&format!("[{}]", vcpus.join(", "))),
        answered("[]"),
        answered("[{\"cpu-index\":0,\"thread-id\":7}]"),
        answered(&format!("[{}0]", "[0],".repeat(12_000))),
        format!(
            "{greeting}{{\"error\": {{\"class\": \"CommandNotFound\", \"desc\": \"no such command\"}}}}\r\n"
        ),
        format!("{greeting}{event}"),
    ];
    let mutator = Mutator::new(
        &examples,
        &["return", "\"return\": ", "QMP", "error", "1.5", "[{", "}]", ","],
    );
    let listener = Listener::new();
    let path = listener.folder.path().join("qmp");
    let socket = OpenSocket::found(&path).unwrap();
    let (mut answers, mut refused, mut compared) = (0, 0, 0);
    // Reading a reply may hold a megabyte; the tree for comparison, more.
    each_input("QMP replies", 2_000, 64 << 20, |random| {
        let reply = mutator.input(random);
        listener.replies.send(reply.clone()).unwrap();
        // Longer than any machine needs, since all bytes are available at once.
        let mut asked = None;
        let held = most_held(|| asked = Some(query_vcpus(&socket, Duration::from_secs(60))));
        assert!(held <= 1 << 20, "a reply held {held} bytes");
        match asked.unwrap() {
            Ok(answer) => {
                answers += 1;
                assert_eq!(answer.peer.pid, Pid(std::process::id()));
                if let Some(vcpus) = as_a_tree(&reply) {
                    assert_eq!(answer.vcpus, vcpus);
                    compared += 1;
                }
            }
            Err(error) => {
                refused += 1;
                let said = error.to_string();
                assert!(said.contains(path.to_str().unwrap()), "{said}");
                assert!(said.len() < 1_000, "the error has {} bytes", said.len());
                assert!(!said.chars().any(char::is_control), "{said:?}");
            }
        }
    });
    println!("{answers} answers, {compared} of them compared, {refused} refused");
}

#[test]
fn qmp_replies_of_megabytes_are_not_kept() {
    let listener = Listener::new();
    let socket = OpenSocket::found(&listener.folder.path().join("qmp")).unwrap();
    // An event larger than any real one, followed by the answer.
    let lists = "[0],".repeat(900_000);
    let reply = format!(
        "{{\"QMP\": {{}}}}{{\"event\": [{lists}0]}}{{\"return\": {{}}}}{{\"return\": [{{\"cpu-index\": 0, \"thread-id\": 7}}]}}"
    );
    let tree = most_held(|| {
        let messages = serde_json::Deserializer::from_str(&reply).into_iter::<Value>();
        assert_eq!(messages.map(Result::unwrap).count(), 4);
    });
    let bytes = reply.len();
    listener.replies.send(reply.into_bytes()).unwrap();
    let held = most_held(|| {
        let answer = query_vcpus(&socket, Duration::from_secs(60)).unwrap();
        assert_eq!(answer.vcpus.len(), 1);
    });
    println!("of {bytes} bytes {held} are kept; as a tree they would take {tree}");
    assert!(held < 1 << 20, "{held}");
}
