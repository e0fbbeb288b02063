//! Code samples of the workload's threads, from the kernel's clock event (`perf record -e cpu-clock`).
//!
//! A timer interrupts each vCPU about 2,000 times per second and records thread and instruction pointer.
//! It needs no hardware counter, which few VMs have, but costs an interrupt per sample.
//! In a nested VM an interrupt takes 35 us, and permanent sampling would cost 7 % (`sysbench cpu` next to `perf record -a -e cpu-clock -F 1999`).
//! The agent therefore starts with a rough look at a quarter of that frequency, for 0.1 s at most every 2 s.
//! It does so only while all vCPUs are busy and part of that time is in the kernel.
//! It samples finely only programs that seem to wait for locks.
//!
//! Kernel addresses are resolved with `/proc/kallsyms`.
//! Functions with `futex` in their name, and the slow path of spin locks, count as waiting for locks.
//! The kernel takes 40 ms to produce that file.
//! It is therefore read once per boot, when a workload first spends a tenth of its time in the kernel, and the result is cached in the state directory.

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::{fs, io};

use perf_event::data::Record;
use perf_event::events::Software;
use perf_event::{Builder, SampleFlag, Sampler};
use serde::{Deserialize, Serialize};
use tandem_linux::ProcFs;
use tandem_linux::replace::replace;
use tandem_linux::thread::Pid;
use tandem_model::{Nanos, PcpuSet};
use tandem_policy::gleaner::Code;
use tandem_policy::gleaner::consolidation::SamplingDetail;

/// Fine samples per second and vCPU; not a multiple of common timer frequencies, to avoid aliasing.
const FINE: u64 = 1999;
/// Rough samples per second and vCPU.
const ROUGH: u64 = 499;
/// Buffer size per vCPU, bytes: 2.7 s of fine samples.
const BUFFER: usize = 1 << 17;
/// Fraction of kernel time below which waiting for locks does not matter.
const MIN_KERNEL_TIME: f64 = 0.1;
/// Lowest kernel address.
const KERNEL: u64 = 1 << 63;

/// Sampler of all vCPUs.
pub struct Profiler {
    procfs: ProcFs,
    rough: Vec<Sampler>,
    fine: Vec<Sampler>,
    /// Which of the two is in use.
    look: SamplingDetail,
    /// Cache file of the resolved addresses.
    kept: PathBuf,
    /// Kernel code that waits for locks, once resolved.
    waits: Option<Vec<Range<u64>>>,
}

/// Cached kernel code that waits for locks; the addresses are valid for one boot.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Kept {
    boot: String,
    waits: Vec<Range<u64>>,
}

impl Profiler {
    /// Opens samplers of these vCPUs, disabled, with a cache of addresses in `state_dir`.
    pub fn open(procfs: &ProcFs, vcpus: &PcpuSet, state_dir: &Path) -> io::Result<Profiler> {
        let open = |vcpu: usize, frequency: u64| {
            let mut event = Builder::new(Software::CPU_CLOCK);
            event
                .any_pid()
                .one_cpu(vcpu)
                .include_kernel()
                .sample(SampleFlag::IP | SampleFlag::TID)
                .sample_frequency(frequency);
            event.build()?.sampled(BUFFER)
        };
        let all = |frequency: u64| -> io::Result<Vec<Sampler>> {
            let samplers = vcpus.iter().map(|vcpu| open(vcpu.0 as usize, frequency));
            samplers.collect()
        };
        Ok(Profiler {
            procfs: procfs.clone(),
            rough: all(ROUGH)?,
            fine: all(FINE)?,
            look: SamplingDetail::Rough,
            kept: state_dir.join("kernel-waits.json"),
            waits: None,
        })
    }

    fn samplers(&mut self) -> &mut [Sampler] {
        match self.look {
            SamplingDetail::Rough => &mut self.rough,
            SamplingDetail::Fine => &mut self.fine,
        }
    }

    /// Starts sampling at this level of detail.
    pub fn start(&mut self, look: SamplingDetail) -> io::Result<()> {
        self.look = look;
        for sampler in self.samplers() {
            while sampler.next_record().is_some() {}
            sampler.enable()?;
        }
        Ok(())
    }

    /// Stops sampling and returns the code that these processes, in ascending order, ran since the start, `period` ago.
    pub fn stop(&mut self, processes: &[Pid], period: Nanos) -> io::Result<Code> {
        let mut code = Code::new(period);
        let mut in_kernel = Vec::new();
        for sampler in self.samplers() {
            sampler.disable()?;
            while let Some(record) = sampler.next_record() {
                let Ok(Record::Sample(sample)) = record.parse_record() else {
                    continue;
                };
                let (Some(pid), Some(address)) = (sample.pid(), sample.ip()) else {
                    continue;
                };
                if processes.binary_search(&Pid(pid)).is_err() {
                    continue;
                }
                if address >= KERNEL { in_kernel.push(address) } else { code.in_user(address) }
            }
        }
        let samples = in_kernel.len() + code.samples() as usize;
        let is_much = in_kernel.len() as f64 > MIN_KERNEL_TIME * samples as f64;
        if is_much && self.waits.is_none() {
            self.waits = Some(look_up(&self.procfs, &self.kept)?);
        }
        let waits = self.waits.as_deref().unwrap_or_default();
        for address in in_kernel {
            code.in_kernel(waits.iter().any(|range| range.contains(&address)));
        }
        Ok(code)
    }
}

/// Returns the kernel code that waits for locks, from the cache at `path` if it is of this boot.
fn look_up(procfs: &ProcFs, path: &Path) -> io::Result<Vec<Range<u64>>> {
    let boot = procfs.boot_id()?;
    let text = fs::read_to_string(path).unwrap_or_default();
    if let Ok(kept) = serde_json::from_str::<Kept>(&text)
        && kept.boot == boot
    {
        return Ok(kept.waits);
    }
    let symbols = fs::read_to_string(procfs.resolve("/proc/kallsyms"))?;
    let kept = Kept { waits: code_of_waiting(&symbols)?, boot };
    // Without the cache, the next agent resolves the addresses again.
    let _ = replace(path, &serde_json::to_string(&kept)?);
    Ok(kept.waits)
}

/// Returns the kernel code that waits for locks, from the text of `/proc/kallsyms`.
fn code_of_waiting(symbols: &str) -> io::Result<Vec<Range<u64>>> {
    let mut starts = Vec::new();
    for line in symbols.lines() {
        let mut fields = line.split_ascii_whitespace();
        let (Some(address), Some(kind), Some(name)) = (fields.next(), fields.next(), fields.next())
        else {
            continue;
        };
        if !matches!(kind, "t" | "T" | "w" | "W") {
            continue;
        }
        let waits = name.contains("futex") || name.ends_with("queued_spin_lock_slowpath");
        starts.push((u64::from_str_radix(address, 16).unwrap_or(0), waits));
    }
    starts.sort_unstable();
    let mut ranges: Vec<Range<u64>> = Vec::new();
    for (&(start, waits), &(end, _)) in starts.iter().zip(starts.iter().skip(1)) {
        match ranges.last_mut() {
            _ if !waits || start == end => {}
            Some(last) if last.end == start => last.end = end,
            _ => ranges.push(start..end),
        }
    }
    if ranges.is_empty() {
        return Err(io::Error::other(
            "/proc/kallsyms shows no address of a futex function (kernel.kptr_restrict is 2, or the kernel has \
             no CONFIG_KALLSYMS)",
        ));
    }
    Ok(ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn symbols_become_ranges() {
        let text = "ffffffff81000000 T _text\nffffffff81000100 t futex_wait_setup\n\
                    ffffffff81000180 T futex_wait\nffffffff81000200 T do_exit\n\
                    ffffffff81000000 D futex_data\n\
                    ffffffff80000000 T __pv_queued_spin_lock_slowpath\n\
                    ffffffff80000040 t other\t[module]\n";
        let ranges = code_of_waiting(text).unwrap();
        assert_eq!(
            ranges,
            [
                0xffff_ffff_8000_0000..0xffff_ffff_8000_0040,
                0xffff_ffff_8100_0100..0xffff_ffff_8100_0200
            ]
        );
    }

    #[test]
    fn hidden_addresses_are_refused() {
        let text = "0000000000000000 T futex_wait\n0000000000000000 T do_exit\n";
        let error = code_of_waiting(text).unwrap_err().to_string();
        assert!(error.contains("kptr_restrict"), "{error}");
    }

    #[test]
    fn addresses_are_cached_per_boot() {
        let root = tempfile::tempdir().unwrap();
        let procfs = ProcFs::at(root.path());
        let write = |path: &str, text: &str| {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        let kept = root.path().join("kept.json");
        write("proc/sys/kernel/random/boot_id", "one\n");
        write("proc/kallsyms", "10 T futex_wait\n20 T do_exit\n");
        assert_eq!(look_up(&procfs, &kept).unwrap()[0], 0x10..0x20);
        // The cache is used in the same boot, but not in another, and not if it is malformed.
        write("proc/kallsyms", "30 T futex_wait\n40 T do_exit\n");
        assert_eq!(look_up(&procfs, &kept).unwrap()[0], 0x10..0x20);
        write("proc/sys/kernel/random/boot_id", "two\n");
        assert_eq!(look_up(&procfs, &kept).unwrap()[0], 0x30..0x40);
        write("kept.json", "{");
        assert_eq!(look_up(&procfs, &kept).unwrap()[0], 0x30..0x40);
    }

    #[test]
    fn busy_thread_is_sampled() {
        let procfs = ProcFs::host();
        let vcpus = tandem_linux::affinity::affinity(tandem_linux::thread::Tid(0)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut profiler = match Profiler::open(&procfs, &vcpus, folder.path()) {
            Ok(profiler) => profiler,
            Err(error) => {
                println!("skipped: no samples of all vCPUs: {error}");
                return;
            }
        };
        let me = Pid(std::process::id());
        for (look, most) in [(SamplingDetail::Fine, 2_000), (SamplingDetail::Rough, 500)] {
            let began = std::time::Instant::now();
            profiler.start(look).unwrap();
            let mut sum = 0u64;
            while began.elapsed().as_millis() < 100 {
                sum = std::hint::black_box(sum.wrapping_mul(31) + 7);
            }
            let period = Nanos(began.elapsed().as_nanos() as u64);
            let code = profiler.stop(&[me], period).unwrap();
            // The maximum allows for a second on each vCPU, as other tests run at the same time.
            assert!((1..=most).contains(&code.samples()), "{code:?}");
            assert!(code.contention() < 0.9, "{code:?}");
        }
        // No process of the workload ran.
        profiler.start(SamplingDetail::Fine).unwrap();
        let code = profiler.stop(&[], Nanos(1)).unwrap();
        assert_eq!(code.samples(), 0);
    }
}
