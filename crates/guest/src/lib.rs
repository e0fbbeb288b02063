//! The agent inside a VM, for users who control the VM but not its host.
//!
//! A blocking thread halts its vCPU, and waking a halted vCPU costs an exit, an interrupt and a wait on the host's run queue.
//! The agent keeps idle vCPUs awake while that pays off (retention).
//! It moves a workload to fewer vCPUs if that increases throughput (consolidation; [`tandem_policy::gleaner`]).
//! On a single vCPU it delays woken threads slightly, so that pieces of work run together ([`delaying`]).
//!
//! The modules follow the data: [`workload`] selects the threads, [`sampler`] reads the counters of threads and vCPUs, [`agent`] asks the policy once per period.
//! [`cpusets`], [`retention`] and [`actuator`] apply its decisions.
//! Each change is in [`journal`] before it is made.
//! It is reverted on exit, on a signal, and after kill -9 by the next start or `tandem guest restore`.
//!
//! [`record`] changes nothing: it records a program for the simulator.
//!
//! Cgroup files, threads and the journal's file format come from [`tandem_linux`], as they are the same in a VM.

mod account;
pub mod actuator;
pub mod agent;
pub mod births;
pub mod config;
mod controller;
pub mod counters;
pub mod cpusets;
mod delayed;
pub mod delaying;
pub mod dry_run;
pub mod journal;
mod knobs;
pub mod metrics;
pub mod pinning;
pub mod profiler;
mod profiling;
pub mod record;
pub mod retention;
pub mod round_trip;
pub mod sampler;
mod sends;
pub mod status;
pub mod workload;
