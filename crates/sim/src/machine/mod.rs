//! The machine: what things cost, and the hardware that exits pause loops.

pub mod cache;
pub mod costs;
pub mod pause_loop;
pub mod steals;

pub use cache::Cache;
pub use costs::Costs;
pub use steals::TimerSteals;
