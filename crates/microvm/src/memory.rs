//! Memory layout of a KVM guest, and the tables that the processor reads.
//!
//! ```text
//! 0x00_1000  GDT                      0x01_0000  64 CPL 0 stacks of 4 KiB
//! 0x00_2000  IDT                      0x08_0000  64 CPL 3 stacks of 8 KiB
//! 0x00_3000  64 TSS of 128 bytes      0x10_0000  the image
//! 0x00_8000  PML4, PDPT, PD           0x20_0000  the shared area
//! ```
//!
//! Linear addresses equal physical ones, in two pages of 2 MiB that CPL 3 may use, as the guest is a single program without protection.
//! A workload at ring 0 stays on the CPL 3 stack of its vCPU, as an interrupt without a change of privilege does not switch stacks.
//! Formats: Intel SDM volume 3A, chapters 3 to 8.

use std::fs::File;

use rustix::fs::{MemfdFlags, memfd_create};
use thiserror::Error;
use vm_memory::{Bytes, FileOffset, GuestAddress, GuestMemoryMmap};

use crate::config::MAX_VCPUS;
use crate::image::Entry;
use crate::shared::SharedArea;
use crate::{image, shared};

const GDT: u64 = 0x1000;
const IDT: u64 = 0x2000;
const TSS: u64 = 0x3000;
const TSS_SIZE: u64 = 128;
const PML4: u64 = 0x8000;
const PDPT: u64 = 0x9000;
const PD: u64 = 0xa000;
const KERNEL_STACKS: u64 = 0x1_0000;
const KERNEL_STACK_SIZE: u64 = 0x1000;
const USER_STACKS: u64 = 0x8_0000;
const USER_STACK_SIZE: u64 = 0x2000;

/// Start of the area shared with the VMM.
pub(crate) const SHARED_START: u64 = 0x20_0000;

const LARGE_PAGE: u64 = 0x20_0000;
const PRESENT_WRITABLE_USER: u64 = 0b111;
const LARGE: u64 = 1 << 7;

/// Segment selectors with their privilege levels.
pub(crate) const KERNEL_CODE: u16 = 0x08;
pub(crate) const USER_DATA: u16 = 0x10 | 3;
pub(crate) const USER_CODE: u16 = 0x18 | 3;
pub(crate) const KERNEL_DATA: u16 = 0x20;

/// Interrupt vectors of `guest/shared.h`.
pub(crate) const VECTOR_WAKE: u8 = 0x40;
const VECTOR_SHOOTDOWN: u8 = 0x41;
const GATE_HALT: u8 = 3;
const GATE_WRMSR: u8 = 4;
pub(crate) const VECTOR_SPURIOUS: u8 = 0xff;

/// Reason why a guest's memory could not be created.
#[derive(Debug, Error)]
pub enum MemoryError {
    /// The host could not allocate the memory.
    #[error("cannot map {bytes} bytes for the VM's memory: {cause}")]
    Map {
        /// Requested size.
        bytes: usize,
        /// Error of the host.
        cause: String,
    },
    /// A part could not be written to its address.
    #[error("cannot write the guest's {what} at {address:#x} of its memory: {cause}")]
    Write {
        /// The part.
        what: &'static str,
        /// Its address in guest memory.
        address: u64,
        /// Reason.
        cause: String,
    },
    /// The shared area does not fit.
    #[error("the shared area does not fit at {0:#x} of the VM's memory")]
    Shared(u64),
}

/// Creates memory for the threads backend: only the shared area.
pub(crate) fn for_threads(vcpus: u32) -> Result<SharedArea, MemoryError> {
    area(vcpus, 0)
}

/// Creates memory for a KVM guest, with image and tables.
pub(crate) fn for_kvm(vcpus: u32) -> Result<SharedArea, MemoryError> {
    let area = area(vcpus, SHARED_START)?;
    let memory = area.memory();
    write(memory, "image", image::IMAGE_START, image::bytes())?;
    write(memory, "GDT", GDT, &words(&gdt()))?;
    write(memory, "IDT", IDT, &words(&idt()))?;
    for index in 0..MAX_VCPUS {
        let tss = TSS + u64::from(index) * TSS_SIZE;
        // rsp0, at offset 4: the initial stack of interrupts at CPL 3.
        write(memory, "TSS", tss + 4, &kernel_stack(index).to_le_bytes())?;
    }
    write(memory, "PML4", PML4, &words(&[PDPT | PRESENT_WRITABLE_USER]))?;
    write(memory, "PDPT", PDPT, &words(&[PD | PRESENT_WRITABLE_USER]))?;
    let large = |page: u64| (page * LARGE_PAGE) | PRESENT_WRITABLE_USER | LARGE;
    write(memory, "PD", PD, &words(&[large(0), large(1)]))?;
    Ok(area)
}

/// Addresses of a vCPU's tables, for its registers.
pub(crate) struct Tables {
    /// GDT: address and limit.
    pub(crate) gdt: (u64, u16),
    /// IDT: address and limit.
    pub(crate) idt: (u64, u16),
    /// TSS: address and limit.
    pub(crate) tss: (u64, u32),
    /// The top-level page table.
    pub(crate) page_table: u64,
    /// Initial CPL 3 stack pointer, as at the entry of a function.
    pub(crate) user_stack: u64,
    /// The vCPU's record in the shared area.
    pub(crate) record: u64,
}

/// Returns the tables of vCPU `index`.
pub(crate) fn tables(index: u32) -> Tables {
    Tables {
        gdt: (GDT, (gdt().len() * 8 - 1) as u16),
        idt: (IDT, (idt().len() * 8 - 1) as u16),
        tss: (TSS + u64::from(index) * TSS_SIZE, 103),
        page_table: PML4,
        // The ABI expects a return address: eight bytes below a multiple of sixteen.
        user_stack: USER_STACKS + (u64::from(index) + 1) * USER_STACK_SIZE - 8,
        record: SHARED_START + shared::vcpu_offset(index),
    }
}

fn kernel_stack(index: u32) -> u64 {
    KERNEL_STACKS + (u64::from(index) + 1) * KERNEL_STACK_SIZE
}

/// Allocates memory in a memfd, so that privileged processes can read the counters while it runs.
/// Without memfd support, it allocates anonymous memory.
fn area(vcpus: u32, start: u64) -> Result<SharedArea, MemoryError> {
    let bytes = (start as usize + shared::size()).next_multiple_of(4096);
    let file = memory_file(&shared::file_name(vcpus, start), bytes as u64);
    let file = file.map(|file| FileOffset::new(file, 0));
    let ranges = [(GuestAddress(0), bytes, file)];
    let memory = GuestMemoryMmap::<()>::from_ranges_with_files(ranges)
        .map_err(|e| MemoryError::Map { bytes, cause: e.to_string() })?;
    SharedArea::at(memory, start).ok_or(MemoryError::Shared(start))
}

fn memory_file(name: &str, bytes: u64) -> Option<File> {
    let file = File::from(memfd_create(name, MemfdFlags::CLOEXEC).ok()?);
    file.set_len(bytes).ok()?;
    Some(file)
}

fn write(
    memory: &GuestMemoryMmap,
    what: &'static str,
    address: u64,
    bytes: &[u8],
) -> Result<(), MemoryError> {
    memory.write_slice(bytes, GuestAddress(address)).map_err(|e| MemoryError::Write {
        what,
        address,
        cause: e.to_string(),
    })
}

fn words(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_le_bytes()).collect()
}

/// Returns the GDT: null, CPL 0 code, CPL 3 data, CPL 3 code, CPL 0 data; present, accessed, and 64-bit code.
fn gdt() -> [u64; 5] {
    [0, 0x00af_9b00_0000_ffff, 0x00cf_f300_0000_ffff, 0x00af_fb00_0000_ffff, 0x00cf_9300_0000_ffff]
}

/// Returns the IDT: interrupt gates into CPL 0 for exceptions and interrupts, and the two that CPL 3 may call.
fn idt() -> Vec<u64> {
    let mut table = vec![0; 512];
    let mut gate = |vector: u8, handler: u64, privilege: u64| {
        const PRESENT_INTERRUPT_GATE: u64 = 0x8e00;
        let place = usize::from(vector) * 2;
        table[place] = handler & 0xffff
            | u64::from(KERNEL_CODE) << 16
            | (PRESENT_INTERRUPT_GATE | privilege << 13) << 32
            | (handler >> 16 & 0xffff) << 48;
        table[place + 1] = handler >> 32;
    };
    for vector in 0..32 {
        gate(vector, image::fault_handler(vector), 0);
    }
    gate(VECTOR_WAKE, image::address(Entry::Wake), 0);
    gate(VECTOR_SHOOTDOWN, image::address(Entry::Shootdown), 0);
    gate(VECTOR_SPURIOUS, image::address(Entry::Spurious), 0);
    gate(GATE_HALT, image::address(Entry::Halt), 3);
    gate(GATE_WRMSR, image::address(Entry::WriteMsr), 3);
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regions_do_not_overlap() {
        let last = u64::from(MAX_VCPUS);
        assert!(TSS + last * TSS_SIZE <= PML4);
        const { assert!(PD + 0x1000 <= KERNEL_STACKS) };
        assert!(KERNEL_STACKS + last * KERNEL_STACK_SIZE <= USER_STACKS);
        assert!(USER_STACKS + last * USER_STACK_SIZE <= image::IMAGE_START);
        assert!(image::IMAGE_START + image::bytes().len() as u64 <= SHARED_START);
        assert!(SHARED_START + shared::size() as u64 <= 2 * LARGE_PAGE);
    }

    #[test]
    fn gates_contain_handler_address() {
        let idt = idt();
        let gate = usize::from(GATE_HALT) * 2;
        let handler = idt[gate] & 0xffff | (idt[gate] >> 48) << 16 | idt[gate + 1] << 32;
        assert_eq!(handler, image::address(Entry::Halt));
        assert_eq!(idt[gate] >> 45 & 3, 3, "CPL 3 may call it");
    }
}
