//! Memory shared by the VMM and a VM's vCPUs: the Rust mirror of `guest/shared.h`, and the C functions that run a workload in it.
//!
//! All fields are atomics, as the other side may write at any time.
//! Counters are read one by one with relaxed ordering.
//! A snapshot is therefore not a single instant of the whole VM, but each counter is exact at some instant during the reading.

use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Relaxed, SeqCst};
use std::sync::atomic::{AtomicI32, AtomicU32, AtomicU64};

use vm_memory::{GuestAddress, GuestMemoryBackend, GuestMemoryMmap};

use crate::calibrate::Calibration;
use crate::completion::{BUCKETS, Histogram};
use crate::config::MicrovmConfig;
use crate::signals;

/// Maximum number of parameters of a workload.
const MAX_PARAMS: usize = 8;

/// `struct tandem_vm` up to its vCPUs.
#[repr(C, align(64))]
struct Header {
    vcpus: AtomicU32,
    workload: AtomicU32,
    stop: AtomicU32,
    process: AtomicI32,
    shootdown_signal: AtomicI32,
    seed: AtomicU64,
    tsc_khz: AtomicU64,
    steps: AtomicU64,
    params: [AtomicU64; MAX_PARAMS],
}

/// `struct tandem_vcpu`.
#[repr(C, align(64))]
pub(crate) struct VcpuRecord {
    pub(crate) work: AtomicU64,
    pub(crate) halts: AtomicU64,
    pub(crate) ipis: AtomicU64,
    pub(crate) acks: AtomicU64,
    pub(crate) violations: AtomicU64,
    pub(crate) dropped: AtomicU64,
    pub(crate) draws: AtomicU64,
    pub(crate) fingerprint: AtomicU64,
    pending: AtomicU32,
    pub(crate) tid: AtomicI32,
    request: AtomicU64,
    seen: AtomicU64,
    timer: AtomicU64,
    private: PrivateLine,
    completions: CompletionCounters,
}

/// Fields that only the vCPU writes.
#[repr(C, align(64))]
struct PrivateLine {
    state: [AtomicU64; 4],
    steps: AtomicU64,
    spins: AtomicU64,
}

/// Completion times, in TSC cycles.
#[repr(C, align(64))]
struct CompletionCounters {
    cycles: AtomicU64,
    counts: [AtomicU64; BUCKETS],
}

/// `tandem_layout` of `guest/layout.c`.
#[repr(C)]
struct Layout {
    vm_size: u64,
    vcpus_at: u64,
    vcpu_size: u64,
    params_at: u64,
    fingerprint_at: u64,
    tid_at: u64,
    guarded_at: u64,
    completions_at: u64,
    buckets: u64,
    steps_at: u64,
}

unsafe extern "C" {
    static tandem_layout: Layout;
    fn tandem_thread_main(vm: *mut u8, index: u32);
    fn tandem_thread_wake_all(vm: *mut u8);
}

fn layout() -> &'static Layout {
    // SAFETY: a constant of the host library, never written, of ten u64 as declared in C.
    unsafe { &tandem_layout }
}

/// Returns the size of a VM's shared memory, bytes.
pub(crate) fn size() -> usize {
    layout().vm_size as usize
}

/// Returns the offset of the record of vCPU `index` in the shared memory.
pub(crate) fn vcpu_offset(index: u32) -> u64 {
    layout().vcpus_at + u64::from(index) * layout().vcpu_size
}

/// Returns the name of the memory file of a VM with `vcpus` vCPUs whose shared area begins at `start`.
/// It contains the number of vCPUs, the offset of the first one's counters (steps, then spins, of 8 bytes), and the distance between records.
pub(crate) fn file_name(vcpus: u32, start: u64) -> String {
    let first = start + vcpu_offset(0) + layout().steps_at;
    format!("tandem-counters-{vcpus}-{first}-{}", layout().vcpu_size)
}

/// Shared memory of one VM, mapped while any clone of this exists.
#[derive(Clone)]
pub(crate) struct SharedArea {
    memory: Arc<GuestMemoryMmap>,
    base: *mut u8,
}

// SAFETY: the pointer is into `memory`, which is mapped for the lifetime of the value; all accesses
// through it are atomic.
unsafe impl Send for SharedArea {}
// SAFETY: as above.
unsafe impl Sync for SharedArea {}

impl SharedArea {
    /// Returns the area at `address` of zeroed `memory`; `None` if it does not fit there in one piece.
    pub(crate) fn at(memory: GuestMemoryMmap, address: u64) -> Option<SharedArea> {
        let start = GuestAddress(address);
        let slice = memory.get_slice(start, size()).ok()?;
        let base = slice.ptr_guard_mut().as_ptr();
        if !(base as usize).is_multiple_of(align_of::<Header>()) {
            return None;
        }
        Some(SharedArea { memory: Arc::new(memory), base })
    }

    /// Returns the memory that contains it.
    pub(crate) fn memory(&self) -> &GuestMemoryMmap {
        &self.memory
    }

    /// Writes the parameters of the vCPUs, before they start.
    pub(crate) fn set_up(&self, config: &MicrovmConfig, calibration: &Calibration) {
        let header = self.header();
        header.vcpus.store(config.vcpus, Relaxed);
        header.workload.store(config.workload() as u32, Relaxed);
        header.process.store(std::process::id() as i32, Relaxed);
        header.shootdown_signal.store(signals::shootdown(), Relaxed);
        header.seed.store(config.seed, Relaxed);
        header.tsc_khz.store(calibration.tsc_khz, Relaxed);
        header.steps.store(calibration.steps_per_mebicycle, Relaxed);
        for (param, value) in header.params.iter().zip(config.parameters.values()) {
            param.store(*value, Relaxed);
        }
    }

    /// Returns the record of vCPU `index`.
    pub(crate) fn vcpu(&self, index: u32) -> &VcpuRecord {
        assert!(index < crate::config::MAX_VCPUS, "vCPU {index} is beyond the shared memory");
        // SAFETY: within the `size()` bytes that `at` found mapped, aligned as the header is, and
        // all atomics; the test below compares the layout with C's.
        unsafe { &*self.base.add(vcpu_offset(index) as usize).cast() }
    }

    /// Returns the completion times of vCPU `index`.
    /// The sum is read first: a burst that ends meanwhile is then in a bucket but not in the sum, or in neither.
    pub(crate) fn completions(&self, index: u32) -> Histogram {
        let counters = &self.vcpu(index).completions;
        let cycles = counters.cycles.load(Acquire);
        Histogram::new(cycles, counters.counts.iter().map(|n| n.load(Relaxed)))
    }

    /// Returns the number of finished critical sections, which workloads with a lock count without atomics.
    pub(crate) fn guarded(&self) -> u64 {
        // SAFETY: an aligned u64 within the area, by C's own offset.
        let counter: &AtomicU64 =
            unsafe { &*self.base.add(layout().guarded_at as usize).cast::<AtomicU64>() };
        counter.load(Relaxed)
    }

    /// Requests the vCPUs to stop.
    pub(crate) fn ask_to_stop(&self) {
        self.header().stop.store(1, SeqCst);
    }

    /// Returns true if the vCPUs were requested to stop.
    pub(crate) fn stopping(&self) -> bool {
        self.header().stop.load(SeqCst) != 0
    }

    /// Runs the workload as vCPU `index` on this thread until the VM stops.
    pub(crate) fn run_thread(&self, index: u32) {
        assert!(index < crate::config::MAX_VCPUS, "vCPU {index} is beyond the shared memory");
        // SAFETY: the area is mapped and set up, and `self` keeps it so.
        unsafe { tandem_thread_main(self.base, index) }
    }

    /// Ends the sleep of all vCPU threads, after [`SharedArea::ask_to_stop`].
    pub(crate) fn wake_threads(&self) {
        // SAFETY: the area is mapped and set up.
        unsafe { tandem_thread_wake_all(self.base) }
    }

    fn header(&self) -> &Header {
        // SAFETY: `at` found it mapped and aligned; all atomics.
        unsafe { &*self.base.cast() }
    }
}

#[cfg(test)]
mod tests {
    use std::mem::offset_of;

    use super::*;
    use crate::workload::Workload;

    #[test]
    fn rust_and_c_agree_on_the_layout() {
        assert_eq!(layout().vcpus_at as usize, size_of::<Header>());
        assert_eq!(layout().params_at as usize, offset_of!(Header, params));
        assert_eq!(layout().vcpu_size as usize, size_of::<VcpuRecord>());
        assert_eq!(layout().fingerprint_at as usize, offset_of!(VcpuRecord, fingerprint));
        assert_eq!(layout().tid_at as usize, offset_of!(VcpuRecord, tid));
        assert!(layout().guarded_at < layout().vm_size);
        assert_eq!(layout().completions_at as usize, offset_of!(VcpuRecord, completions));
        assert_eq!(layout().buckets as usize, BUCKETS);
        let private = offset_of!(VcpuRecord, private);
        assert_eq!(layout().steps_at as usize, private + offset_of!(PrivateLine, steps));
        assert_eq!(offset_of!(PrivateLine, spins), offset_of!(PrivateLine, steps) + 8);
    }

    #[test]
    fn every_parameter_has_a_place() {
        for workload in Workload::ALL {
            assert!(workload.parameters().len() <= MAX_PARAMS, "{workload}");
        }
    }
}
