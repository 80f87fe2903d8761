//! Facts about the machine that the walker needs. This process learns them from its own memory,
//! whose contents it knows.

use super::program::Status;
use super::{EntrySize, Frames, GIB, Layout, OpenError, PageTables, WalkError};
use crate::{Reservation, own_memory};
use megapage_units::{BASE_PAGE, HUGE_2M, Pid};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::FileExt;

/// Lowest possible starts of the direct map, for 4 and for 5 levels
/// (Documentation/arch/x86/x86_64/mm.rst). Nothing that could be read by mistake lies below.
const FLOOR_4_LEVELS: u64 = 0xffff_8880_0000_0000;
const FLOOR_5_LEVELS: u64 = 0xff11_0000_0000_0000;
/// Boundary between the direct maps: that of 5 levels ends below it, that of 4 levels begins above
/// it.
const LEAST_OF_4_LEVELS: u64 = 0xffff_8000_0000_0000;
/// Bytes that the BPF program compares.
const MAGIC_BYTES: usize = 64;

/// Finds where the kernel maps physical address 0, for which it shows no symbol. Tries one GiB
/// after the other, upwards, until the page tables lead from a page of this process to the bytes
/// written there. `end` is the end of physical memory.
pub fn direct_map(tables: &mut PageTables, end: u64) -> Result<(), OpenError> {
    let own = Pid(std::process::id() as i32);
    match tables.address_space(own) {
        Ok(_) => {}
        Err(WalkError::Io(source)) => return Err(source.into()),
        // A kernel that looks pids up in its initial namespace does not find this process by its
        // number in another namespace.
        Err(WalkError::Gone) => return Err(OpenError::NoDirectMap { tries: 0 }),
    }
    let mut magic = [0; MAGIC_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut magic)?;
    // The bytes must not cross the end of a page.
    let mut page = vec![0u8; 2 * MAGIC_BYTES];
    let offset = page.as_ptr().align_offset(MAGIC_BYTES);
    page[offset..offset + MAGIC_BYTES].copy_from_slice(&magic);
    let written = std::hint::black_box(&page)[offset..].as_ptr().addr() as u64;

    let control = tables.program.control_mut();
    // The top table lies in the direct map itself.
    let top = control.walk.top;
    let (levels, floor) = shapes(top);
    let lowest = (top & !(GIB - 1)).saturating_sub(end.next_multiple_of(GIB)).max(floor);
    let tries = (top.saturating_sub(lowest) / GIB + 1).min(1 << 22);
    for (word, bytes) in control.magic.iter_mut().zip(magic.chunks_exact(8)) {
        *word = u64::from_ne_bytes(bytes.try_into().expect("eight of them"));
    }
    control.walk.at = written;
    control.pid = own.0;
    // Bound for wrong guesses: if one reads something else as an entry, it still leads to no
    // device.
    control.walk.end = end;
    for &levels in levels {
        let control = tables.program.control_mut();
        control.tries = tries;
        control.walk.levels = levels;
        control.walk.direct_map = lowest;
        tables.program.run("find_direct_map")?;
        let control = tables.program.control_mut();
        if control.status() == Status::Done {
            // From here on entries are right: memory that is added later lies past `end`.
            control.walk.end = u64::MAX;
            drop(page);
            return Ok(());
        }
    }
    Err(OpenError::NoDirectMap { tries: tries * levels.len() as u64 })
}

/// Returns the possible numbers of levels, the likeliest first, and the lowest possible start of
/// the direct map.
fn shapes(top: u64) -> (&'static [u32], u64) {
    if cfg!(target_arch = "aarch64") {
        // For 48, 52 and 39 bits of virtual address. Memory may begin far above physical address 0.
        // The direct map's place for address 0 may then lie below all kernel addresses, where
        // nothing is mapped.
        (&[4, 5, 3], 0)
    } else if top >= LEAST_OF_4_LEVELS {
        (&[4], FLOOR_4_LEVELS)
    } else {
        (&[5], FLOOR_5_LEVELS)
    }
}

/// Learns how the kernel writes the entry of a page that may not be accessed. This shows which
/// layout of entries it uses.
pub fn layout(tables: &mut PageTables) -> Result<Layout, OpenError> {
    let memory = memory(BASE_PAGE)?;
    let start = memory.start() as u64;
    own_memory()?.write_all_at(&[1], start)?;
    memory.protect(libc::PROT_NONE).map_err(io::Error::from)?;
    let (entry, _) = match tables.own_entry(start) {
        Ok(entry) => entry.unwrap_or((0, EntrySize::Base)),
        Err(WalkError::Io(source)) => return Err(source.into()),
        Err(WalkError::Gone) => (0, EntrySize::Base),
    };
    Layout::of_inaccessible(entry).ok_or(OpenError::Unknown { entry })
}

/// Learns the frames of the shared pages of zeros. Private memory that was only read maps them.
pub fn zero_pages(tables: &mut PageTables) -> Result<(), OpenError> {
    let read = |tables: &mut PageTables, memory: &Reservation| {
        let start = memory.start() as u64;
        own_memory()?.read_exact_at(&mut [0], start)?;
        match tables.own_entry(start) {
            Ok(entry) => Ok(entry),
            Err(WalkError::Io(source)) => Err(source),
            Err(WalkError::Gone) => Ok(None),
        }
    };
    let Frames { layout, mask, .. } = tables.frames;
    if let Some((entry, _)) = read(tables, &memory(BASE_PAGE)?)? {
        tables.frames.zero = layout.frame(entry, mask);
    }
    // The 2 MiB page of zeros keeps its frame while a process that has mapped it lives, as this one
    // does.
    let region = memory(HUGE_2M)?;
    // EINVAL without transparent huge pages: then there is no such page either.
    let _ = region.advise_thp();
    // Excludes the entry of a base page (the kernel gave no huge page), and a writable huge page,
    // which belongs to this process alone.
    let is_zeros =
        |(entry, size): &(u64, EntrySize)| *size == EntrySize::Huge2m && !layout.is_writable(*entry);
    let entry = read(tables, &region)?.filter(is_zeros);
    tables.frames.huge_zero = entry.map(|(entry, _)| layout.frame(entry, mask));
    Ok(())
}

/// Makes private memory of this process, aligned to its length.
fn memory(length: usize) -> io::Result<Reservation> {
    let memory = Reservation::new(length, length)?;
    memory.open()?;
    Ok(memory)
}
