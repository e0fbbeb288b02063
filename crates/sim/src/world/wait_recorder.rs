//! Recorded waits within a VM: a matrix for each VM, and the present piece of wait of each thread.
//!
//! `waits` defines the figures, and when a piece begins and ends.

use tandem_model::Nanos;

use crate::results::{WaitMatrix, Waits};

use super::state_recorder::{MAX_VCPUS, StateRecorder};

/// A thread's wait for a lock, and its present piece.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Piece {
    pub waits: bool,
    /// The vCPU of the lock's holder, or [`NONE`].
    pub holder: u32,
    pub since: u64,
    /// The holder's steal time at `since`.
    pub stolen: u64,
    /// The spinning time of the waiter's vCPU at `since`.
    pub spun: u64,
}

/// Wait time, while the other vCPU was on a pCPU and while it was off.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cell {
    pub running: u64,
    pub off: u64,
}

impl Cell {
    pub fn add(&mut self, time: u64, stolen: u64) {
        let off = stolen.min(time);
        self.running += time - off;
        self.off += off;
    }
}

/// The matrices of a VM, in row order: waiter, then the other vCPU.
pub(super) struct Matrices {
    pub vcpus: usize,
    pub locks: Vec<Cell>,
    pub flushes: Vec<Cell>,
    /// By waiter: wait time without a lock holder.
    pub free: Vec<u64>,
    /// Steal time of the asked vCPU at the request to flush, by asker and asked.
    pub asked: Vec<u64>,
}

impl Matrices {
    pub fn new(vcpus: u32) -> Option<Matrices> {
        let vcpus = (vcpus <= MAX_VCPUS).then_some(vcpus as usize)?;
        Some(Matrices {
            vcpus,
            locks: vec![Cell::default(); vcpus * vcpus],
            flushes: vec![Cell::default(); vcpus * vcpus],
            free: vec![0; vcpus],
            asked: vec![0; vcpus * vcpus],
        })
    }

    pub fn results(&self) -> Waits {
        let matrix = |cells: &[Cell]| {
            let rows = |of: fn(&Cell) -> u64| {
                let row = |row: &[Cell]| row.iter().map(|cell| Nanos(of(cell))).collect();
                cells.chunks(self.vcpus).map(row).collect()
            };
            WaitMatrix { running: rows(|cell| cell.running), off: rows(|cell| cell.off) }
        };
        Waits {
            locks: matrix(&self.locks),
            free: self.free.iter().map(|&time| Nanos(time)).collect(),
            flushes: matrix(&self.flushes),
        }
    }
}

/// The recorder of waits and states.
pub(crate) struct WaitRecorder {
    /// By VM; `None` for those of more than [`MAX_VCPUS`] vCPUs.
    pub vms: Vec<Option<Matrices>>,
    /// By thread.
    pub pieces: Vec<Piece>,
    /// States of vCPUs and pCPU waits.
    pub states: StateRecorder,
}
