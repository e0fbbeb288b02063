//! Pins a vCPU's thread to one pCPU, as operators do to avoid stacking.

use std::{fs, io, thread};

use thiserror::Error;

/// Reason why a thread could not be pinned.
#[derive(Debug, Error)]
#[error(
    "cannot pin vCPU {vcpu} to pCPU {pcpu}: {cause}; this host's pCPUs are {online}, and the \
     cpuset of this process may allow fewer"
)]
pub struct PinError {
    /// The vCPU.
    pub vcpu: u32,
    /// The requested pCPU.
    pub pcpu: u32,
    /// Error of the kernel.
    pub cause: io::Error,
    /// The online pCPUs.
    pub online: String,
}

/// Pins the calling thread, which runs vCPU `vcpu`, to `pcpu`.
pub(crate) fn pin_this_thread(vcpu: u32, pcpu: u32) -> Result<(), PinError> {
    set_affinity(pcpu).map_err(|cause| PinError { vcpu, pcpu, cause, online: online() })
}

/// Checks that a thread of this process can be pinned to each of `pins`, which are those of the vCPUs in order.
/// It pins a thread of its own, as no list of pCPUs reflects cpusets and hot-plug.
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
    // The kernel's limit (NR_CPUS) is 8192.
    if pcpu >= 8192 {
        return Err(io::Error::from_raw_os_error(libc::EINVAL));
    }
    let mut mask = vec![0_u64; pcpu / BITS + 1];
    mask[pcpu / BITS] = 1 << (pcpu % BITS);
    // SAFETY: the length is that of the mask, and the kernel only reads it.
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
    fn error_names_missing_and_online_pcpus() {
        for pcpu in [8191, 8192, u32::MAX] {
            let error = check(&[pcpu]).unwrap_err().to_string();
            assert!(error.contains(&format!("vCPU 0 to pCPU {pcpu}")), "{error}");
            assert!(error.contains("pCPUs are 0"), "{error}");
        }
    }
}
