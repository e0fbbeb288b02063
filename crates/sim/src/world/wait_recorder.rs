//! Who waited for whom, as it is recorded: a matrix for each VM, a piece of wait for each thread.
//!
//! What the numbers mean, and when a piece begins and ends, is said where they are counted (`waits`).

use tandem_model::Nanos;

use crate::results::{WaitMatrix, Waits};

use super::state_recorder::{MOST_VCPUS, StateRecorder};

/// A thread that waits for a lock, and the piece of its wait that is under way.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Piece {
    pub waits: bool,
    /// The vCPU of the lock's holder, or [`NONE`].
    pub holder: u32,
    pub since: u64,
    /// The holder's stolen time then.
    pub stolen: u64,
    /// What the waiter's vCPU had spun then.
    pub spun: u64,
}

/// Time waited, while the other vCPU was on a pCPU and while it was not.
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

/// The matrices of a VM, row by row: who waited, for whom.
pub(super) struct Matrices {
    pub vcpus: usize,
    pub locks: Vec<Cell>,
    pub flushes: Vec<Cell>,
    /// By waiter: nobody held the lock.
    pub free: Vec<u64>,
    /// Stolen time of who was asked to flush when it was asked, by asker and asked.
    pub asked: Vec<u64>,
}

impl Matrices {
    pub fn new(vcpus: u32) -> Option<Matrices> {
        let vcpus = (vcpus <= MOST_VCPUS).then_some(vcpus as usize)?;
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

/// All of it.
pub(crate) struct WaitRecorder {
    /// By VM; none for the large ones.
    pub vms: Vec<Option<Matrices>>,
    /// By thread.
    pub pieces: Vec<Piece>,
    /// Where the time of vCPUs goes.
    pub states: StateRecorder,
}
