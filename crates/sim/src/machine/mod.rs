//! The machine: what things cost, and the hardware that exits pause loops.

pub mod costs;
pub mod pause_loop;

pub use costs::Costs;
