//! The machine: costs of operations, caches, and pause-loop exiting.

pub mod cache;
pub mod costs;
pub mod pause_loop;
pub mod steals;

pub use cache::Cache;
pub use costs::Costs;
pub use steals::TimerSteals;
