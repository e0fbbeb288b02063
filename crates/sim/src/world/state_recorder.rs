//! Where the time of vCPUs goes and who waits for whom, as it is recorded beside the results: what is added up while the world runs.
//!
//! - Each pCPU has a list of the vCPUs that are queued on it and wait. Whenever its occupant or the list changes, all on the list are
//!   charged to the occupant that was ([`StateRecorder::charge`]). So what a vCPU waited is the sum of whom it waited for, to the ns.
//! - Each VM of up to [`MOST_VCPUS`] vCPUs has matrices of victim and sibling: co-stop, yields, and how long the sibling was kept
//!   off pCPUs when the victim's present wait began.
//!
//! When something is added, and what it means, is said in `states`. Times are ns.

use tandem_model::states::edges::Party;
use tandem_model::{Nanos, VcpuId, VmId};

use super::state::{NONE, SimulatedVm};

/// VMs with more vCPUs have no matrix of them.
pub(super) const MOST_VCPUS: u32 = 64;

/// Cells of the matrix of who takes pCPUs at most: 32 MiB.
const MOST_CELLS: usize = 1 << 22;

/// What is added up of a vCPU.
#[derive(Clone, Copy, Debug)]
pub(super) struct VcpuRecord {
    /// Queued on a pCPU and not on it.
    pub ready: u64,
    /// Spinning while the sibling that it waits for was off.
    pub costop_spinning: u64,
    /// Halted while the sibling that woke it was off.
    pub costop_halted: u64,
    /// How often it had been put on a pCPU when recording began.
    pub runs_before: u64,
    /// The pCPU that it waits for, and its place in the list there; or [`NONE`].
    on: u32,
    place: u32,
    /// The thread that spins for all of its siblings, at a barrier or for TLB flushes; or [`NONE`].
    pub spinner: u32,
    /// What the vCPU had spun when that began.
    pub spun_before: u64,
}

/// The vCPUs that wait for a pCPU, and up to when they are charged.
#[derive(Clone, Debug)]
struct Waiting {
    since: u64,
    vcpus: Vec<u32>,
}

/// Who takes pCPUs: a column for each vCPU, or for each VM where those would be too many. The last is for nobody.
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
    /// How long the sibling had been off when the victim's wait, or this part of it, began.
    seen: Vec<u64>,
    /// How long it was off in the parts before.
    gathered: Vec<u64>,
    /// Directed yields that helped, and those that did not.
    pub taken: Vec<u64>,
    pub useless: Vec<u64>,
}

impl Siblings {
    fn new(vcpus: u32) -> Option<Siblings> {
        let vcpus = (vcpus <= MOST_VCPUS).then_some(vcpus as usize)?;
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

    /// A wait, or another part of it, begins: a sibling had been off for so long.
    pub fn begin(&mut self, victim: u32, sibling: u32, off: u64) {
        let cell = self.cell(victim, sibling);
        self.seen[cell] = off;
    }

    /// A part of a wait ends; the wait goes on.
    pub fn gather(&mut self, victim: u32, sibling: u32, off: u64) {
        let cell = self.cell(victim, sibling);
        self.gathered[cell] += off.saturating_sub(self.seen[cell]);
    }

    /// Nothing is gathered of a wait that begins.
    pub fn forget(&mut self, victim: u32) {
        let row = self.cell(victim, 0);
        self.gathered[row..row + self.vcpus].fill(0);
    }

    /// How long a sibling was off in the present wait; `running` says whether a part of it is under way.
    pub fn off(&self, victim: u32, sibling: u32, off: u64, running: bool) -> u64 {
        let cell = self.cell(victim, sibling);
        let part = if running { off.saturating_sub(self.seen[cell]) } else { 0 };
        self.gathered[cell] + part
    }

    /// The victim was in co-stop for a sibling.
    pub fn charge(&mut self, victim: u32, sibling: u32, time: u64) {
        let cell = self.cell(victim, sibling);
        self.costop[cell] += time;
    }

    /// The victim yielded to a sibling.
    pub fn yielded(&mut self, victim: u32, sibling: u32, taken: bool) {
        let cell = self.cell(victim, sibling);
        if taken { self.taken[cell] += 1 } else { self.useless[cell] += 1 }
    }
}

/// All of it.
pub(super) struct StateRecorder {
    pub vcpus: Vec<VcpuRecord>,
    pcpus: Vec<Waiting>,
    /// None where VMs are too many as well.
    takers: Option<Takers>,
    /// By VM; none for the large ones.
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

    /// Charges all who wait for a pCPU with the time since they were last charged to who is on it ([`NONE`]: nobody).
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

    /// A vCPU waits for a pCPU from now on; all who wait for it are charged already.
    pub fn add(&mut self, v: u32, p: u32) {
        let waiting = &mut self.pcpus[p as usize].vcpus;
        let vcpu = &mut self.vcpus[v as usize];
        debug_assert_eq!(vcpu.on, NONE, "it waits for one pCPU at a time");
        (vcpu.on, vcpu.place) = (p, waiting.len() as u32);
        waiting.push(v);
    }

    /// A vCPU waits no more; all who wait for that pCPU are charged already.
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

    /// What was added up so far does not count; what is under way goes on from now.
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

    /// Whom a vCPU waited for, and how long; `None` where that is not recorded.
    pub fn waited_for(&self, v: u32) -> Option<impl Iterator<Item = (&Party, Nanos)>> {
        let takers = self.takers.as_ref()?;
        let row = takers.parties.len() * v as usize;
        let times = &takers.time[row..row + takers.parties.len()];
        Some(takers.parties.iter().zip(times.iter().map(|time| Nanos(*time))))
    }

    /// Whether it is recorded who takes pCPUs.
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
        let fits = |columns: usize| count.saturating_mul(columns + 1) <= MOST_CELLS;
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
        // A pCPU that is idle for a moment while one comes to it.
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
