//! A running microVM: one host thread per vCPU, started and stopped together.
//!
//! The threads set themselves up (name, pinning), report, and wait until the whole VM is ready.
//! A thread then stays in KVM_RUN, or in the workload with the threads backend, until the VM stops.
//! Dropping a [`Microvm`] stops it.

use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, mpsc};
use std::thread::JoinHandle;
use std::{io, thread};

use kvm_ioctls::{VcpuFd, VmFd};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use thiserror::Error;

use crate::calibrate::Calibration;
use crate::config::{Backend, ConfigError, MicrovmConfig};
use crate::kvm::KvmError;
use crate::memory::MemoryError;
use crate::pin::PinError;
use crate::shared::SharedArea;
use crate::snapshot::{Snapshot, VcpuSnapshot};
use crate::thread_time::{ThreadTime, monotonic_ns};
use crate::vcpu::VcpuError;
use crate::{kvm, memory, pin, signals, vcpu};

/// Stack size for the loop around KVM_RUN or a workload; small, for hundreds of VMs.
const STACK_SIZE: usize = 128 * 1024;

/// Reason why a microVM did not start.
#[derive(Debug, Error)]
pub enum StartError {
    /// The configuration is invalid.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// Its memory could not be created.
    #[error(transparent)]
    Memory(#[from] MemoryError),
    /// KVM is missing, inaccessible, or failed.
    #[error(transparent)]
    Kvm(#[from] KvmError),
    /// A vCPU could not be pinned.
    #[error(transparent)]
    Pin(#[from] PinError),
    /// Signal handlers or the event could not be set up.
    #[error("cannot set up {what}: {cause}")]
    Host {
        /// The object to set up.
        what: &'static str,
        /// Error of the kernel.
        cause: io::Error,
    },
    /// A vCPU's thread could not be created.
    #[error("cannot start a thread for vCPU {index}: {cause}; look at ulimit -u and pids.max")]
    Thread {
        /// The vCPU.
        index: u32,
        /// Error of the kernel.
        cause: io::Error,
    },
    /// A vCPU's thread exited before it was ready.
    #[error("the thread of a vCPU ended before it was ready")]
    Lost,
}

/// A running VM.
///
/// ```no_run
/// use tandem_microvm::Microvm;
/// use tandem_microvm::MicrovmConfig;
/// use tandem_microvm::Workload;
///
/// let vm = Microvm::start(MicrovmConfig::new("vm0".parse()?, Workload::Burn))?;
/// std::thread::sleep(std::time::Duration::from_secs(1));
/// println!("{} items", vm.stop().work());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct Microvm {
    config: MicrovmConfig,
    calibration: Calibration,
    vcpus: Vec<VcpuThread>,
    failure: Arc<Failure>,
    // Declared before the area, to be dropped before its memory; its statistics files also keep the machine alive.
    _machine: Option<(VmFd, Vec<OwnedFd>)>,
    area: SharedArea,
}

struct VcpuThread {
    tid: i32,
    last: Arc<OnceLock<ThreadTime>>,
    handle: Option<JoinHandle<()>>,
}

/// The first failure of a vCPU, and an event that signals it.
struct Failure {
    first: Mutex<Option<VcpuError>>,
    event: OwnedFd,
}

/// Execution of a vCPU by its thread.
enum Engine {
    Kvm(VcpuFd),
    Thread,
}

type Ready = Result<(u32, i32), PinError>;

impl Microvm {
    /// Starts the VM and returns when all vCPUs run.
    pub fn start(config: MicrovmConfig) -> Result<Microvm, StartError> {
        config.check()?;
        // Check the pins first, so that the error does not depend on other missing features of the host.
        pin::check(&config.pins)?;
        signals::install().map_err(host("signal handlers"))?;
        let calibration = config.calibration.unwrap_or_else(Calibration::measure);
        let (area, engines, machine) = match config.backend {
            Backend::Kvm => {
                let area = memory::for_kvm(config.vcpus)?;
                let kvm = kvm::create(&area, config.vcpus, config.ring)?;
                let engines = kvm.vcpus.into_iter().map(Engine::Kvm).collect();
                (area, engines, Some((kvm.vm, kvm.stats)))
            }
            Backend::Threads => {
                let engines = (0..config.vcpus).map(|_| Engine::Thread).collect();
                (memory::for_threads(config.vcpus)?, engines, None)
            }
        };
        area.set_up(&config, &calibration);
        let mut vm = Microvm {
            config,
            calibration,
            vcpus: Vec::new(),
            failure: Arc::new(Failure::new()?),
            _machine: machine,
            area,
        };
        vm.start_threads(engines)?;
        Ok(vm)
    }

    /// Returns the configuration.
    pub fn config(&self) -> &MicrovmConfig {
        &self.config
    }

    /// Returns the calibration that determines the sizes of its work.
    pub fn calibration(&self) -> Calibration {
        self.calibration
    }

    /// Returns the host thread of each vCPU, in order.
    pub fn tids(&self) -> Vec<i32> {
        self.vcpus.iter().map(|vcpu| vcpu.tid).collect()
    }

    /// Returns the first failure of a vCPU, if any.
    pub fn failure(&self) -> Option<VcpuError> {
        self.failure.get()
    }

    /// Returns a file that becomes readable at the failure of a vCPU, for use with poll.
    pub fn failure_event(&self) -> BorrowedFd<'_> {
        self.failure.event.as_fd()
    }

    /// Reads its counters; the vCPUs keep running.
    pub fn snapshot(&self) -> Snapshot {
        let t_ns = monotonic_ns();
        let vcpus = self
            .vcpus
            .iter()
            .zip(0..)
            .map(|(vcpu, index)| self.vcpu_snapshot(vcpu, index))
            .collect();
        Snapshot {
            t_ns,
            tsc_khz: self.calibration.tsc_khz,
            vcpus,
            guarded: self.area.guarded(),
            failure: self.failure().map(|failure| failure.to_string()),
        }
    }

    /// Stops it and returns its final counters.
    pub fn stop(mut self) -> Snapshot {
        self.stop_threads();
        self.snapshot()
    }

    fn vcpu_snapshot(&self, vcpu: &VcpuThread, index: u32) -> VcpuSnapshot {
        let record = self.area.vcpu(index);
        let time = vcpu.time();
        VcpuSnapshot {
            index,
            tid: vcpu.tid,
            work: record.work.load(Relaxed),
            cpu_ns: time.cpu_ns,
            wait_ns: time.wait_ns,
            halts: record.halts.load(Relaxed),
            ipis: record.ipis.load(Relaxed),
            acks: record.acks.load(Relaxed),
            dropped: record.dropped.load(Relaxed),
            completions: self.area.completions(index),
            violations: record.violations.load(Relaxed),
            draws: record.draws.load(Relaxed),
            fingerprint: record.fingerprint.load(Relaxed),
        }
    }

    fn start_threads(&mut self, engines: Vec<Engine>) -> Result<(), StartError> {
        let gate = Arc::new(OnceLock::new());
        let started = self.start_threads_before(&gate, engines);
        if started.is_err() {
            // Threads that wait at the gate then exit.
            self.area.ask_to_stop();
        }
        gate.get_or_init(|| ());
        started
    }

    fn start_threads_before(
        &mut self,
        gate: &Arc<OnceLock<()>>,
        engines: Vec<Engine>,
    ) -> Result<(), StartError> {
        let (ready, reports) = mpsc::channel::<Ready>();
        for (engine, index) in engines.into_iter().zip(0..) {
            let last = Arc::new(OnceLock::new());
            let thread = Starting {
                index,
                pin: self.config.pin(index),
                engine,
                area: self.area.clone(),
                ready: ready.clone(),
                gate: Arc::clone(gate),
                last: Arc::clone(&last),
                failure: Arc::clone(&self.failure),
            };
            let handle = thread::Builder::new()
                .name(self.config.name.thread_name(index))
                .stack_size(STACK_SIZE)
                .spawn(move || thread.run())
                .map_err(|cause| StartError::Thread { index, cause })?;
            self.vcpus.push(VcpuThread { tid: 0, last, handle: Some(handle) });
        }
        drop(ready);
        for _ in 0..self.vcpus.len() {
            let (index, tid) = reports.recv().map_err(|_| StartError::Lost)??;
            self.vcpus[index as usize].tid = tid;
        }
        Ok(())
    }

    fn stop_threads(&mut self) {
        self.area.ask_to_stop();
        match self.config.backend {
            Backend::Kvm => {
                for vcpu in self.vcpus.iter().filter(|vcpu| vcpu.tid != 0) {
                    signals::send(vcpu.tid, signals::kick());
                }
            }
            Backend::Threads => self.area.wake_threads(),
        }
        for vcpu in &mut self.vcpus {
            if let Some(handle) = vcpu.handle.take() {
                // A panic of the thread was already printed.
                let _ = handle.join();
            }
        }
    }
}

impl Drop for Microvm {
    fn drop(&mut self) {
        self.stop_threads();
    }
}

impl VcpuThread {
    /// Returns the thread's times; its final ones after its exit.
    fn time(&self) -> ThreadTime {
        let last = || self.last.get().copied();
        last().or_else(|| ThreadTime::of(self.tid)).or_else(last).unwrap_or_default()
    }
}

impl Failure {
    fn new() -> Result<Failure, StartError> {
        let event = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| host("an eventfd")(e.into()))?;
        Ok(Failure { first: Mutex::new(None), event })
    }

    fn get(&self) -> Option<VcpuError> {
        let first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.clone()
    }

    fn set(&self, error: VcpuError) {
        let mut first = self.first.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(error);
        // Fails only if the counter is at its maximum, and then the event is already readable.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }
}

fn host(what: &'static str) -> impl Fn(io::Error) -> StartError {
    move |cause| StartError::Host { what, cause }
}

/// Data of a starting vCPU thread.
struct Starting {
    index: u32,
    pin: Option<u32>,
    engine: Engine,
    area: SharedArea,
    ready: mpsc::Sender<Ready>,
    gate: Arc<OnceLock<()>>,
    last: Arc<OnceLock<ThreadTime>>,
    failure: Arc<Failure>,
}

impl Starting {
    fn run(self) {
        let tid = rustix::thread::gettid().as_raw_nonzero().get();
        self.area.vcpu(self.index).tid.store(tid, Relaxed);
        let pinned = match self.pin {
            Some(pcpu) => pin::pin_this_thread(self.index, pcpu),
            None => Ok(()),
        };
        // The receiver is gone if another vCPU has failed meanwhile; `stopping` is then true after the gate.
        let _ = self.ready.send(pinned.map(|()| (self.index, tid)));
        drop(self.ready);
        self.gate.wait();
        let ended = match self.engine {
            _ if self.area.stopping() => Ok(()),
            Engine::Kvm(vcpu) => vcpu::run(vcpu, self.index, &self.area),
            Engine::Thread => {
                self.area.run_thread(self.index);
                Ok(())
            }
        };
        if let Err(error) = ended {
            self.area.ask_to_stop();
            self.failure.set(error);
        }
        if let Some(time) = ThreadTime::of(tid) {
            self.last.get_or_init(|| time);
        }
    }
}
