//! Compares stock with the guest agent and with settings made by hand, for the programs of [`program::PROGRAMS`]: `tandem-lab bench guest`.
//!
//! Each program runs alone for some seconds, in turn in stock and in every variant ([`measure`]).
//! Figures are medians of paired ratios with intervals ([`crate::interval`]), CPU time and awake time per unit of work ([`counters`]), and means over the set.
//! Programs that cannot run on this machine are skipped with a reason; that is no failure.
//! A program that should run and does not is a failure.
//!
//! The agent is `tandem guest run`, restarted for each run, so every figure includes its time to settle.
//! It changes vCPUs and idle settings, journals the changes, and reverts them; the bench itself changes only its own folder.
//! Run it on an otherwise idle machine.

pub mod account;
pub mod counters;
pub mod database;
pub mod figures;
pub mod folder;
pub mod held_back;
pub mod inputs;
pub mod measure;
pub mod output;
pub mod paced;
pub mod page;
pub mod process;
pub mod program;
pub mod row;
pub mod session;
pub mod tables;
pub mod token;
pub mod variant;
