//! The guest image: the flat binary that the build script creates from `guest/`, and the addresses of its entry points, read from its header (`guest/stubs.S`).

/// Address of the image in guest memory (`guest/image.ld`).
pub(crate) const IMAGE_START: u64 = 0x10_0000;

/// Code size of each of the 32 exception entries, bytes.
const FAULT_ENTRY_SIZE: u64 = 8;

static IMAGE: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/guest.bin"));

/// Returns the bytes of the image.
pub(crate) fn bytes() -> &'static [u8] {
    IMAGE
}

/// Entry points of the image, by their index in the header.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Entry {
    /// Entry point of a vCPU, at CPL 3.
    Main = 1,
    /// The gate that halts.
    Halt = 2,
    /// The gate that writes an MSR.
    WriteMsr = 3,
    /// The handler of wake-ups and timers.
    Wake = 4,
    /// The handler of shootdowns.
    Shootdown = 5,
    /// The handler of spurious interrupts.
    Spurious = 6,
    /// The first of the handlers of exceptions.
    Fault = 7,
}

/// Returns the address of `entry`.
pub(crate) fn address(entry: Entry) -> u64 {
    word(entry as usize)
}

/// Returns the address of the handler of exception `vector`.
pub(crate) fn fault_handler(vector: u8) -> u64 {
    address(Entry::Fault) + u64::from(vector) * FAULT_ENTRY_SIZE
}

fn word(place: usize) -> u64 {
    let mut bytes = [0; 8];
    bytes.copy_from_slice(&IMAGE[place * 8..place * 8 + 8]);
    u64::from_le_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn header_points_into_image() {
        assert_eq!(word(0), 0x6d65_646e_6174_0001);
        for entry in [
            Entry::Main,
            Entry::Halt,
            Entry::WriteMsr,
            Entry::Wake,
            Entry::Shootdown,
            Entry::Spurious,
            Entry::Fault,
        ] {
            let offset = address(entry).checked_sub(IMAGE_START).expect("in the image");
            assert!((64..IMAGE.len() as u64).contains(&offset), "{entry:?}");
        }
    }

    #[test]
    fn exception_entries_push_their_number() {
        for vector in 0..32 {
            let at = (fault_handler(vector) - IMAGE_START) as usize;
            // PUSH imm8 is 6A ib.
            assert_eq!(IMAGE[at..at + 2], [0x6a, vector]);
        }
    }
}
