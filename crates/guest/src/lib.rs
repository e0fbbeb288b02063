//! The agent inside a VM, for whoever owns the VM but not its host.
//!
//! A thread that blocks lets its vCPU halt, and waking a halted vCPU costs an exit, an interrupt and a turn
//! on the host. The agent keeps idle vCPUs awake while that is worth it (retention), and puts a workload on fewer
//! vCPUs where it gets more done there (consolidation; [`tandem_policy::gleaner`]). On a single vCPU it holds woken threads
//! back a little, so that pieces of work run together ([`delaying`]).
//!
//! The modules follow the data: [`workload`] says whose threads, [`sampler`] reads what they and the vCPUs
//! did, [`agent`] asks the policy once a period, [`cpusets`], [`retention`] and [`actuator`] carry it out. Every
//! change is in [`journal`] before it is made and is put back on exit, on a signal, and after kill -9 by the
//! next start or `tandem guest restore`.
//!
//! [`record`] changes nothing: it records a program for the simulator.
//!
//! Cgroup files, threads and the journal's file are those of [`tandem_linux`]: they are the same in a VM.

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
