//! HVS, the heuristic choice of a spinning vCPU's yield target: safe bindings of `c/hvs.h`.
//!
//! The header documents the algorithm; this module adds the records of a VM's vCPUs, and enums instead of numbers.
//! Each VM has its own [`Hvs`].
//!
//! Units: times are of one monotonic clock and are only compared.
//! Source: Shan, Ding and Gehani, TPDS 2017, section on HVS.
//!
//! Non-goals: preempting, yielding, reading clocks.
//! Events of an unknown vCPU index are ignored, and such a spinner excludes no vCPU.

/// Maximum number of vCPUs in a VM.
pub const MAX_VCPUS: usize = 1024;

/// Reason for the preemption of a vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
pub enum Cause {
    /// Its slice ran out, or a task with precedence woke.
    Slice = 0,
    /// It was in a pause loop.
    Spinning = 1,
    /// A vCPU chosen here displaced it.
    Displaced = 2,
}

/// Order of preference.
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

/// List of a preempted vCPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum List {
    /// Its slice ran out.
    ResourceWaiter,
    /// It was preempted for spinning.
    LockWaiter,
    /// Its slice ran out after it was chosen, or a chosen vCPU displaced it.
    Yielded,
}

/// A VM that HVS does not support.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum HvsError {
    /// The VM has more than the maximum number of vCPUs.
    #[error("{vcpus} vCPUs in one VM; HVS chooses among at most {MAX_VCPUS}")]
    TooManyVcpus {
        /// Number of vCPUs.
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
    /// Starts with `vcpus` vCPUs, none of them preempted.
    ///
    /// # Errors
    /// If there are more than [`MAX_VCPUS`].
    pub fn new(vcpus: usize, order: Order) -> Result<Hvs, HvsError> {
        if vcpus > MAX_VCPUS {
            return Err(HvsError::TooManyVcpus { vcpus });
        }
        let mut records = vec![Record::default(); vcpus];
        for record in &mut records {
            // SAFETY: valid and of C's layout (`layout_matches_c`); C keeps no pointer.
            unsafe { tandem_ffi_hvs_init(record) };
        }
        Ok(Hvs { order, records })
    }

    /// The vCPU was preempted at `now`.
    pub fn preempted(&mut self, vcpu: usize, cause: Cause, now: u64) {
        if let Some(record) = self.records.get_mut(vcpu) {
            // SAFETY: as in `new`; access to the record is exclusive.
            unsafe { tandem_ffi_hvs_preempted(record, cause as u32, now) };
        }
    }

    /// The vCPU starts to run.
    pub fn running(&mut self, vcpu: usize) {
        if let Some(record) = self.records.get_mut(vcpu) {
            // SAFETY: as in `new`; access to the record is exclusive.
            unsafe { tandem_ffi_hvs_running(record) };
        }
    }

    /// The vCPU is idle.
    pub fn blocked(&mut self, vcpu: usize) {
        if let Some(record) = self.records.get_mut(vcpu) {
            // SAFETY: as in `new`; access to the record is exclusive.
            unsafe { tandem_ffi_hvs_blocked(record) };
        }
    }

    /// Returns the vCPU that `spinner` should yield to, and marks it.
    /// A marked vCPU goes on the yielded list when its slice next runs out.
    /// With `None`, the spinner keeps running.
    #[must_use]
    pub fn candidate(&mut self, spinner: usize) -> Option<usize> {
        let count = self.records.len() as u32;
        let spinner = u32::try_from(spinner).unwrap_or(u32::MAX);
        let order = self.order as u32;
        // SAFETY: the pointer is to `count` valid records with exclusive access; C keeps no pointer.
        let chosen =
            unsafe { tandem_ffi_hvs_candidate(self.records.as_mut_ptr(), count, spinner, order) };
        usize::try_from(chosen).ok()
    }

    /// Returns true if vCPU `a` ranks before `b`; false in a tie, or if either does not exist.
    pub fn is_better(&self, a: usize, b: usize) -> bool {
        let (Some(a), Some(b)) = (self.records.get(a), self.records.get(b)) else {
            return false;
        };
        // SAFETY: both records are valid and only read.
        unsafe { tandem_ffi_hvs_better(self.order as u32, a, b) }
    }

    /// Returns the list of the vCPU; `None` if it is not preempted.
    pub fn list(&self, vcpu: usize) -> Option<List> {
        match self.records.get(vcpu)?.list {
            1 => Some(List::ResourceWaiter),
            2 => Some(List::LockWaiter),
            3 => Some(List::Yielded),
            _ => None,
        }
    }

    /// Returns true if the vCPU was chosen and its slice has not run out since.
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
    fn layout_matches_c() {
        let all = (0..).map(|field| tandem_ffi_hvs_vcpu_layout(field));
        let reported: Vec<usize> =
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
            MAX_VCPUS,
        ];
        assert_eq!(reported, ours);
    }
}
