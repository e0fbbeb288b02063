//! Recorded states of vCPUs and pCPU waits, in addition to the results.
//!
//! - Each pCPU has a list of the vCPUs that are queued on it and wait.
//!   Whenever its occupant or the list changes, all vCPUs on the list charge the elapsed time to the previous occupant ([`StateRecorder::charge`]).
//!   The wait of a vCPU is therefore the sum over its culprits, to the ns.
//! - Each VM of up to [`MAX_VCPUS`] vCPUs has matrices of victim and sibling: co-stop, yields, and the sibling's time off pCPUs
//!   when the victim's present wait began.
//!
//! `states` defines the events and their meaning.
//! Times are ns.

use tandem_model::states::edges::Party;
use tandem_model::{Nanos, VcpuId, VmId};

use super::state::{NONE, SimulatedVm};

/// Maximum number of vCPUs in a VM with matrices.
pub(super) const MAX_VCPUS: u32 = 64;

/// Maximum number of cells of [`Takers`]: 32 MiB.
const MAX_CELLS: usize = 1 << 22;

/// Recorded times of a vCPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct VcpuRecord {
    /// Queued on a pCPU, but not running.
    pub ready: u64,
    /// Spinning while the sibling that it waits for was off.
    pub costop_spinning: u64,
    /// Halted while the sibling that woke it was off.
    pub costop_halted: u64,
    /// Times switched in before the recording began.
    pub runs_before: u64,
    /// The pCPU that it waits for, and its place in the list there; or [`NONE`].
    on: u32,
    place: u32,
    /// The thread that spins for all of its siblings, at a barrier or for TLB flushes; or [`NONE`].
    pub spinner: u32,
    /// The vCPU's spinning time when that wait began.
    pub spun_before: u64,
}

/// The vCPUs that wait for a pCPU, and the time up to which they are charged.
#[derive(Clone, Debug)]
struct Waiting {
    since: u64,
    vcpus: Vec<u32>,
}

/// Waits for pCPUs by victim (row) and occupant (column).
/// A column is a vCPU, or a VM if the vCPUs would be too many; the last one is an idle pCPU.
struct Takers {
    column: Vec<u32>,
    parties: Vec<Party>,
    time: Vec<u64>,
}

/// Matrices of a VM, row by row: the victim, then the sibling.
pub(super) struct Siblings {
    vcpus: usize,
    /// Time in co-stop.
    pub costop: Vec<u64>,
    /// The sibling's time off pCPUs when the victim's wait, or this part of it, began.
    seen: Vec<u64>,
    /// The sibling's time off pCPUs during earlier parts of the wait.
    gathered: Vec<u64>,
    /// Directed yields that the scheduler followed, and others.
    pub taken: Vec<u64>,
    pub useless: Vec<u64>,
}

impl Siblings {
    fn new(vcpus: u32) -> Option<Siblings> {
        let vcpus = (vcpus <= MAX_VCPUS).then_some(vcpus as usize)?;
        let cells = vec![0; vcpus * vcpus];
        Some(Siblings {
            vcpus,
            costop: cells.clone(),
            seen: cells.clone(),
            gathered: cells.clone(),
            taken: cells.clone(),
            useless: cells,
        })
    }

    fn cell(&self, victim: u32, sibling: u32) -> usize {
        victim as usize * self.vcpus + sibling as usize
    }

    /// Begins a wait, or another part of it, with the sibling's time off so far.
    pub fn begin(&mut self, victim: u32, sibling: u32, off: u64) {
        let cell = self.cell(victim, sibling);
        self.seen[cell] = off;
    }

    /// Ends a part of a wait that continues later.
    pub fn gather(&mut self, victim: u32, sibling: u32, off: u64) {
        let cell = self.cell(victim, sibling);
        self.gathered[cell] += off.saturating_sub(self.seen[cell]);
    }

    /// Clears the earlier parts, for a new wait.
    pub fn forget(&mut self, victim: u32) {
        let row = self.cell(victim, 0);
        self.gathered[row..row + self.vcpus].fill(0);
    }

    /// A sibling's time off during the present wait; `running` tells whether a part of the wait is in progress.
    pub fn off(&self, victim: u32, sibling: u32, off: u64, running: bool) -> u64 {
        let cell = self.cell(victim, sibling);
        let part = if running { off.saturating_sub(self.seen[cell]) } else { 0 };
        self.gathered[cell] + part
    }

    /// Charges co-stop of the victim to a sibling.
    pub fn charge(&mut self, victim: u32, sibling: u32, time: u64) {
        let cell = self.cell(victim, sibling);
        self.costop[cell] += time;
    }

    /// Counts a directed yield of the victim to a sibling.
    pub fn yielded(&mut self, victim: u32, sibling: u32, taken: bool) {
        let cell = self.cell(victim, sibling);
        if taken { self.taken[cell] += 1 } else { self.useless[cell] += 1 }
    }
}

/// The recorder of states and pCPU waits.
pub(super) struct StateRecorder {
    pub vcpus: Vec<VcpuRecord>,
    pcpus: Vec<Waiting>,
    /// `None` if even the VMs are too many.
    takers: Option<Takers>,
    /// By VM; `None` for those of more than [`MAX_VCPUS`] vCPUs.
    pub siblings: Vec<Option<Siblings>>,
}

impl StateRecorder {
    pub fn new(vms: &[SimulatedVm], pcpus: usize, now: u64) -> StateRecorder {
        let count = vms.iter().map(|vm| vm.vcpus as usize).sum();
        let vcpu = VcpuRecord {
            ready: 0,
            costop_spinning: 0,
            costop_halted: 0,
            runs_before: 0,
            on: NONE,
            place: NONE,
            spinner: NONE,
            spun_before: 0,
        };
        let waiting = Waiting { since: now, vcpus: Vec::new() };
        StateRecorder {
            vcpus: vec![vcpu; count],
            pcpus: vec![waiting; pcpus],
            takers: Takers::new(vms, count),
            siblings: vms.iter().map(|vm| Siblings::new(vm.vcpus)).collect(),
        }
    }

    /// Charges the time since the last charge, of all vCPUs that wait for a pCPU, to its occupant ([`NONE`]: idle).
    pub fn charge(&mut self, p: u32, occupant: u32, now: u64) {
        let waiting = &mut self.pcpus[p as usize];
        let time = now - waiting.since;
        waiting.since = now;
        if time == 0 {
            return;
        }
        for &v in &waiting.vcpus {
            self.vcpus[v as usize].ready += time;
            if let Some(takers) = &mut self.takers {
                takers.charge(v, occupant, time);
            }
        }
    }

    /// The pCPU that a vCPU waits for.
    pub fn waits_on(&self, v: u32) -> Option<u32> {
        let on = self.vcpus[v as usize].on;
        (on != NONE).then_some(on)
    }

    /// Adds a vCPU to those that wait for a pCPU. The caller has charged the others.
    pub fn add(&mut self, v: u32, p: u32) {
        let waiting = &mut self.pcpus[p as usize].vcpus;
        let vcpu = &mut self.vcpus[v as usize];
        debug_assert_eq!(vcpu.on, NONE, "it waits for one pCPU at a time");
        (vcpu.on, vcpu.place) = (p, waiting.len() as u32);
        waiting.push(v);
    }

    /// Removes a vCPU from those that wait for its pCPU. The caller has charged them.
    pub fn remove(&mut self, v: u32) {
        let vcpu = &mut self.vcpus[v as usize];
        let on = std::mem::replace(&mut vcpu.on, NONE);
        let place = std::mem::replace(&mut vcpu.place, NONE);
        let waiting = &mut self.pcpus[on as usize].vcpus;
        waiting.swap_remove(place as usize);
        if let Some(&moved) = waiting.get(place as usize) {
            self.vcpus[moved as usize].place = place;
        }
    }

    /// Resets the recorded times; waits in progress continue from now.
    pub fn forget(&mut self) {
        for vcpu in &mut self.vcpus {
            vcpu.ready = 0;
            (vcpu.costop_spinning, vcpu.costop_halted) = (0, 0);
            vcpu.spun_before = 0;
        }
        if let Some(takers) = &mut self.takers {
            takers.time.fill(0);
        }
        for siblings in self.siblings.iter_mut().flatten() {
            siblings.costop.fill(0);
            siblings.gathered.fill(0);
            siblings.taken.fill(0);
            siblings.useless.fill(0);
        }
    }

    /// Culprits of a vCPU's waits, and the times; `None` if these are not recorded.
    pub fn waited_for(&self, v: u32) -> Option<impl Iterator<Item = (&Party, Nanos)>> {
        let takers = self.takers.as_ref()?;
        let row = takers.parties.len() * v as usize;
        let times = &takers.time[row..row + takers.parties.len()];
        Some(takers.parties.iter().zip(times.iter().map(|time| Nanos(*time))))
    }

    /// Whether the culprits of pCPU waits are recorded.
    pub fn has_takers(&self) -> bool {
        self.takers.is_some()
    }

    /// The matrices of a vCPU's VM, and the vCPU itself.
    pub fn of(&mut self, vm: u32, v: u32) -> Option<(&mut Siblings, &mut VcpuRecord)> {
        let siblings = self.siblings[vm as usize].as_mut()?;
        Some((siblings, &mut self.vcpus[v as usize]))
    }
}

impl Takers {
    fn new(vms: &[SimulatedVm], count: usize) -> Option<Takers> {
        let fits = |columns: usize| count.saturating_mul(columns + 1) <= MAX_CELLS;
        let by_vm = !fits(count);
        if by_vm && !fits(vms.len()) {
            return None;
        }
        let (mut column, mut parties) = (Vec::with_capacity(count), Vec::new());
        for (number, vm) in vms.iter().enumerate() {
            let id = VmId(number as u64);
            if by_vm {
                parties.push(Party::Vm(id));
            }
            for vcpu in 0..vm.vcpus {
                if !by_vm {
                    let vcpu = VcpuId(vcpu);
                    parties.push(Party::Vcpu { vm: id, vcpu });
                }
                column.push(parties.len() as u32 - 1);
            }
        }
        // A pCPU may be idle for a moment while a vCPU is queued on it.
        parties.push(Party::Unseen);
        Some(Takers { column, time: vec![0; count * parties.len()], parties })
    }

    fn charge(&mut self, victim: u32, occupant: u32, time: u64) {
        let column = match occupant {
            NONE => self.parties.len() - 1,
            occupant => self.column[occupant as usize] as usize,
        };
        self.time[victim as usize * self.parties.len() + column] += time;
    }
}
