//! The pages of this program's file that it has mapped.
//!
//! File-level obligation: nothing is discarded that the kernel cannot read from the file again.

#![allow(unsafe_code)]

use megapage_units::BASE_PAGE;

unsafe extern "C" {
    // Of the linker (ld(1), "etext"): where the program's file is mapped, and where its code ends.
    static __executable_start: u8;
    static etext: u8;
}

/// Unmaps the code and the constants of this program, which the kernel maps again from its page cache as they are used: for
/// a program that waits most of its life beside another. Where the kernel refuses it, they stay.
pub fn unmap_own_code() {
    let start = &raw const __executable_start as usize;
    let end = (&raw const etext as usize) / BASE_PAGE * BASE_PAGE;
    if start.is_multiple_of(BASE_PAGE) && start < end {
        // SAFETY: between the two symbols lie segments that are mapped from the file, read-only: what is discarded is
        // read from the file again, by the kernel, on any touch.
        unsafe { libc::madvise(start as *mut libc::c_void, end - start, libc::MADV_DONTNEED) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resident_of_file() -> usize {
        let smaps = std::fs::read_to_string("/proc/self/smaps").unwrap();
        let name = std::env::current_exe().unwrap();
        let mut of_code = false;
        let mut kilobytes = 0;
        for line in smaps.lines() {
            if line.contains("00:00 0") || line.contains('/') {
                of_code = line.ends_with(name.to_str().unwrap()) && line.contains(" r-xp ");
            } else if let Some(rss) = line.strip_prefix("Rss:").filter(|_| of_code) {
                kilobytes += rss.trim().trim_end_matches(" kB").parse::<usize>().unwrap();
            }
        }
        kilobytes
    }

    #[test]
    fn code_that_was_unmapped_is_mapped_again_as_it_is_used() {
        let before = resident_of_file();
        for _ in 0..3 {
            unmap_own_code();
        }
        let after = resident_of_file();
        // Other tests run beside this one: only that most of it went can be determined.
        assert!(before > 0 && after < before, "{before} KiB, then {after}");
    }
}
