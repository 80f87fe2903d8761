//! The calling process's own mappings, read without allocating.

use crate::errno::Errno;
use crate::own_values::Descriptor;
use libc::c_int;
use std::ffi::CStr;

/// One mapping of the calling process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnMapping {
    /// The first address.
    pub start: usize,
    /// The first address after it.
    pub end: usize,
    /// Protection, as mmap(2) names it: PROT_READ and so on.
    pub protection: c_int,
    /// True if it is shared (MAP_SHARED).
    pub shared: bool,
    /// True if a file is mapped.
    pub file: bool,
}

impl OwnMapping {
    /// Returns the first address and the first one after it, if the mapping is private memory: no
    /// file, can be read and written, and not executed. `None` of any other.
    pub fn private_memory(&self) -> Option<(usize, usize)> {
        let is = !self.shared && !self.file && self.protection == libc::PROT_READ | libc::PROT_WRITE;
        is.then_some((self.start, self.end))
    }
}

/// The longest start of a line that is looked at: addresses, access, offset, device, and inode.
const LINE: usize = 128;

/// Calls `visit` with every mapping of the calling process, by address (/proc/self/maps,
/// proc_pid_maps(5)).
pub fn own_mappings(mut visit: impl FnMut(OwnMapping)) -> Result<(), Errno> {
    own_lines(c"/proc/self/maps", |line| {
        if let Some(mapping) = mapping_of(line) {
            visit(mapping);
        }
    })
}

/// Calls `visit` with the first address of every mapping of the calling process, the first one
/// after it, and its bytes on huge pages (/proc/self/smaps). The kernel counts transparent ones of
/// 2 MiB and hugetlb.
pub fn own_huge_bytes(mut visit: impl FnMut(usize, usize, usize)) -> Result<(), Errno> {
    let mut last: Option<(OwnMapping, usize)> = None;
    own_lines(c"/proc/self/smaps", |line| {
        if let Some(mapping) = mapping_of(line) {
            if let Some((before, huge)) = last.replace((mapping, 0)) {
                visit(before.start, before.end, huge);
            }
        } else if let (Some((_, huge)), Some(bytes)) = (&mut last, huge_of(line)) {
            *huge += bytes;
        }
    })?;
    if let Some((mapping, huge)) = last {
        visit(mapping.start, mapping.end, huge);
    }
    Ok(())
}

/// Returns the bytes of a line of smaps that counts huge pages.
fn huge_of(line: &[u8]) -> Option<usize> {
    let mut fields = line.split(|&byte| byte == b' ').filter(|field| !field.is_empty());
    let counts = matches!(fields.next()?, b"AnonHugePages:" | b"Private_Hugetlb:" | b"Shared_Hugetlb:");
    let kib: usize = std::str::from_utf8(fields.next()?).ok()?.parse().ok()?;
    counts.then_some(kib << 10)
}

/// Calls `visit` with the start of every line of one of the process's own files.
fn own_lines(path: &CStr, mut visit: impl FnMut(&[u8])) -> Result<(), Errno> {
    let file = Descriptor::open(path)?;
    let mut buffer = [0u8; 4096];
    let (mut line, mut length) = ([0u8; LINE], 0);
    loop {
        let read = match file.read(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(read) => read,
            Err(Errno(libc::EINTR)) => continue,
            Err(error) => return Err(error),
        };
        for &byte in &buffer[..read] {
            if byte == b'\n' {
                visit(&line[..length]);
                length = 0;
            } else if length < LINE {
                line[length] = byte;
                length += 1;
            }
        }
    }
}

/// Parses one line of proc_pid_maps(5), without its name. `None` where it is no such line.
pub fn mapping_of(line: &[u8]) -> Option<OwnMapping> {
    let mut fields = line.split(|&byte| byte == b' ').filter(|field| !field.is_empty());
    let hex = |text: &[u8]| usize::from_str_radix(std::str::from_utf8(text).ok()?, 16).ok();
    let mut ends = fields.next()?.split(|&byte| byte == b'-');
    let (start, end) = (hex(ends.next()?)?, hex(ends.next()?)?);
    let access = fields.next()?;
    let bit = |at: usize, letter: u8, bit: c_int| if access.get(at) == Some(&letter) { bit } else { 0 };
    let protection =
        bit(0, b'r', libc::PROT_READ) | bit(1, b'w', libc::PROT_WRITE) | bit(2, b'x', libc::PROT_EXEC);
    let inode = fields.nth(2)?;
    Some(OwnMapping {
        start,
        end,
        protection,
        shared: access.get(3) == Some(&b's'),
        file: inode.iter().any(|&digit| digit != b'0'),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_figures_of_huge_pages_are_read() {
        assert_eq!(huge_of(b"AnonHugePages:      4096 kB"), Some(4 << 20));
        assert_eq!(huge_of(b"Private_Hugetlb:    2048 kB"), Some(2 << 20));
        assert_eq!(huge_of(b"Rss:                2048 kB"), None);
        let here = (&raw const K_PROBE).addr();
        let mut holds = 0;
        own_huge_bytes(|start, end, huge| {
            assert!(huge <= end - start);
            holds += usize::from((start..end).contains(&here));
        })
        .unwrap();
        assert_eq!(holds, 1);
    }

    static K_PROBE: u64 = 7;
}
