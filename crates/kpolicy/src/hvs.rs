//! HVS, the heuristic choice of whom a spinning vCPU yields to: the safe face of `c/hvs.h`.
//!
//! The header's essay says which vCPU is chosen and why; here is only what Rust adds: the records of
//! a VM's vCPUs in one place, and enums instead of numbers. One [`Hvs`] for each VM.
//!
//! Units: times are of any one clock that does not go back, and are only compared. Source: Shan, Ding
//! and Gehani, TPDS 2017, section on HVS.
//!
//! Not done here: preempting, yielding, knowing the time. An index that no vCPU of the VM has names
//! nobody: events for it are ignored, and as the spinner it excludes nobody.

/// So many vCPUs may a VM have.
pub const MOST_VCPUS: usize = 1024;

/// Why a vCPU that could run on was taken off its pCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Cause {
    /// Its slice ran out, or somebody with a better claim came.
    Slice = 0,
    /// It was in a pause loop.
    Spinning = 1,
    /// It gave way to a vCPU that was chosen here.
    Displaced = 2,
}

/// Whom to prefer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Order {
    /// Resource-waiters, latest first; then lock-waiters, earliest first; then yielded ones.
    #[default]
    Hvs = 0,
    /// As HVS, but resource-waiters earliest first.
    CpthR = 1,
    /// As HVS, but lock-waiters latest first.
    CpthL = 2,
    /// As HVS, but lock-waiters before resource-waiters.
    Cch = 3,
}

/// Where a preempted vCPU waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum List {
    /// Its slice ran out.
    ResourceWaiter,
    /// It was preempted for spinning.
    LockWaiter,
    /// Its slice ran out after it had been chosen.
    Yielded,
}

/// A VM that HVS cannot serve.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HvsError {
    /// More vCPUs than one choice looks at.
    #[error("{vcpus} vCPUs in one VM; HVS chooses among at most {MOST_VCPUS}")]
    TooManyVcpus {
        /// How many there are.
        vcpus: usize,
    },
}

/// `struct tandem_hvs_vcpu`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[repr(C)]
struct Record {
    preempted_at: u64,
    list: u8,
    yielded: u8,
    reserved: [u8; 6],
}

unsafe extern "C" {
    fn tandem_ffi_hvs_init(record: *mut Record);
    fn tandem_ffi_hvs_preempted(record: *mut Record, cause: u32, now: u64);
    fn tandem_ffi_hvs_running(record: *mut Record);
    fn tandem_ffi_hvs_blocked(record: *mut Record);
    fn tandem_ffi_hvs_better(order: u32, a: *const Record, b: *const Record) -> bool;
    fn tandem_ffi_hvs_candidate(
        records: *mut Record,
        count: u32,
        spinner: u32,
        order: u32,
    ) -> std::ffi::c_int;
}

/// HVS, or one of its variants, of one VM.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hvs {
    order: Order,
    records: Vec<Record>,
}

impl Hvs {
    /// A VM of so many vCPUs, none of which is preempted.
    ///
    /// # Errors
    /// Where there are more than [`MOST_VCPUS`].
    pub fn new(vcpus: usize, order: Order) -> Result<Hvs, HvsError> {
        if vcpus > MOST_VCPUS {
            return Err(HvsError::TooManyVcpus { vcpus });
        }
        let mut records = vec![Record::default(); vcpus];
        for record in &mut records {
            // SAFETY: valid and of C's layout (`layout_is_that_of_c`); C keeps no pointer.
            unsafe { tandem_ffi_hvs_init(record) };
        }
        Ok(Hvs { order, records })
    }

    /// The vCPU was taken off its pCPU at `now`, though it could have run on.
    pub fn preempted(&mut self, vcpu: usize, cause: Cause, now: u64) {
        if let Some(record) = self.records.get_mut(vcpu) {
            // SAFETY: as in `new`; the record is ours alone.
            unsafe { tandem_ffi_hvs_preempted(record, cause as u32, now) };
        }
    }

    /// The vCPU was put on a pCPU.
    pub fn running(&mut self, vcpu: usize) {
        if let Some(record) = self.records.get_mut(vcpu) {
            // SAFETY: as in `new`; the record is ours alone.
            unsafe { tandem_ffi_hvs_running(record) };
        }
    }

    /// The vCPU has nothing to do.
    pub fn blocked(&mut self, vcpu: usize) {
        if let Some(record) = self.records.get_mut(vcpu) {
            // SAFETY: as in `new`; the record is ours alone.
            unsafe { tandem_ffi_hvs_blocked(record) };
        }
    }

    /// Whom `spinner` should yield to; that vCPU is marked, and goes on the yielded list when next
    /// its slice runs out. Where there is nobody, the spinner runs on.
    #[must_use]
    pub fn candidate(&mut self, spinner: usize) -> Option<usize> {
        let count = self.records.len() as u32;
        let spinner = u32::try_from(spinner).unwrap_or(u32::MAX);
        let order = self.order as u32;
        // SAFETY: `count` records lie there, valid and ours alone; C keeps no pointer.
        let chosen =
            unsafe { tandem_ffi_hvs_candidate(self.records.as_mut_ptr(), count, spinner, order) };
        usize::try_from(chosen).ok()
    }

    /// Whether vCPU `a` would rather be chosen than `b`; false in a tie, and where either is not.
    pub fn is_better(&self, a: usize, b: usize) -> bool {
        let (Some(a), Some(b)) = (self.records.get(a), self.records.get(b)) else {
            return false;
        };
        // SAFETY: both records are valid and only read.
        unsafe { tandem_ffi_hvs_better(self.order as u32, a, b) }
    }

    /// The list that the vCPU is on; none if it is not preempted.
    pub fn list(&self, vcpu: usize) -> Option<List> {
        match self.records.get(vcpu)?.list {
            1 => Some(List::ResourceWaiter),
            2 => Some(List::LockWaiter),
            3 => Some(List::Yielded),
            _ => None,
        }
    }

    /// Whether the vCPU was chosen and its slice has not run out since.
    pub fn is_marked(&self, vcpu: usize) -> bool {
        self.records.get(vcpu).is_some_and(|record| record.yielded != 0)
    }
}

#[cfg(test)]
mod tests {
    use std::mem::{align_of, offset_of, size_of};

    use super::*;

    unsafe extern "C" {
        safe fn tandem_ffi_hvs_vcpu_layout(field: u32) -> u32;
    }

    #[test]
    fn layout_is_that_of_c() {
        let all = (0..).map(|field| tandem_ffi_hvs_vcpu_layout(field));
        let told: Vec<usize> =
            all.take_while(|&value| value != u32::MAX).map(|value| value as usize).collect();
        let ours = vec![
            size_of::<Record>(),
            align_of::<Record>(),
            offset_of!(Record, preempted_at),
            offset_of!(Record, list),
            offset_of!(Record, yielded),
            offset_of!(Record, reserved),
            0,
            1,
            2,
            3,
            Cause::Slice as usize,
            Cause::Spinning as usize,
            Cause::Displaced as usize,
            Order::Hvs as usize,
            Order::CpthR as usize,
            Order::CpthL as usize,
            Order::Cch as usize,
            MOST_VCPUS,
        ];
        assert_eq!(told, ours);
    }
}
