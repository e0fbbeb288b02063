//! Prints the CPU states of threads each second: `watch_threads SECONDS TID…`

use std::time::Duration;

use tandem_linux::ProcFs;
use tandem_linux::thread::{Pid, ThreadRef, Tid};
use tandem_model::{VcpuId, VmId};
use tandem_observe::bpf::{Bpf, Options, Watch};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut numbers = std::env::args().skip(1).map(|text| text.parse::<u32>());
    let seconds = numbers.next().ok_or("usage: watch_threads SECONDS TID…")??;
    let begin = std::time::Instant::now();
    let mut bpf = Bpf::open(Options::default())?;
    println!("open after {:?}", begin.elapsed());
    let mut threads = Vec::new();
    for (index, tid) in (0..).zip(numbers) {
        threads.push(Watch {
            index,
            thread: {
                // `/proc/TID` exists for each thread.
                let tid = tid?;
                ThreadRef::read(&ProcFs::host(), Pid(tid), Tid(tid))?
            },
            vm: VmId(1),
            vcpu: VcpuId(index),
        });
    }
    bpf.watch(&threads)?;
    for _ in 0..seconds {
        std::thread::sleep(Duration::from_secs(1));
        println!("{:#?}", bpf.read()?);
    }
    for missing in bpf.missing() {
        println!("{missing}");
    }
    Ok(())
}
