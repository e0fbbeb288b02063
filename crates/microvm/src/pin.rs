//! Pinning a vCPU's thread to one pCPU, as operators do to avoid stacking.

use std::{fs, io, thread};

use thiserror::Error;

/// Why a thread could not be pinned.
#[derive(Debug, Error)]
#[error(
    "cannot pin vCPU {vcpu} to pCPU {pcpu}: {cause}; this host's pCPUs are {online}, and the \
     cpuset of this process may allow fewer"
)]
pub struct PinError {
    /// Which vCPU.
    pub vcpu: u32,
    /// Which pCPU was asked for.
    pub pcpu: u32,
    /// What the kernel said.
    pub cause: io::Error,
    /// The pCPUs that are online.
    pub online: String,
}

/// Pins the calling thread, which runs vCPU `vcpu`, to `pcpu`.
pub(crate) fn pin_this_thread(vcpu: u32, pcpu: u32) -> Result<(), PinError> {
    set_affinity(pcpu).map_err(|cause| PinError { vcpu, pcpu, cause, online: online() })
}

/// Whether a thread of this process can be pinned to each of `pins`, which are the vCPUs' in turn.
/// Found out by doing it, on a thread of its own: no list of pCPUs knows of cpusets and hot-plug.
pub(crate) fn check(pins: &[u32]) -> Result<(), PinError> {
    if pins.is_empty() {
        return Ok(());
    }
    let pin_all = || {
        let mut pins = (0..).zip(pins);
        pins.try_for_each(|(vcpu, pcpu)| pin_this_thread(vcpu, *pcpu))
    };
    thread::scope(|scope| scope.spawn(pin_all).join()).unwrap_or(Ok(()))
}

fn set_affinity(pcpu: u32) -> io::Result<()> {
    const BITS: usize = u64::BITS as usize;
    let pcpu = pcpu as usize;
    // The kernel's own limit (NR_CPUS) is 8192: beyond there is nothing to ask it.
    if pcpu >= 8192 {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut mask = vec![0_u64; pcpu / BITS + 1];
    mask[pcpu / BITS] = 1 << (pcpu % BITS);
    // SAFETY: the mask is as long as stated, and the kernel only reads it.
    let result =
        unsafe { libc::sched_setaffinity(0, mask.len() * size_of::<u64>(), mask.as_ptr().cast()) };
    if result != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}

fn online() -> String {
    fs::read_to_string("/sys/devices/system/cpu/online")
        .map_or_else(|_| "unknown".to_owned(), |list| list.trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pcpu_that_does_not_exist_is_named_with_those_that_do() {
        for pcpu in [8191, 8192, u32::MAX] {
            let error = check(&[pcpu]).unwrap_err().to_string();
            assert!(error.contains(&format!("vCPU 0 to pCPU {pcpu}")), "{error}");
            assert!(error.contains("pCPUs are 0"), "{error}");
        }
    }
}
