//! The calling process's own LOAD segments: their mappings, and the replacement of those by other
//! memory. For a library that is loaded before `main`. Nothing here allocates.
//!
//! File-level obligation: a [`Part`] is made from a LOAD segment that the dynamic loader lists and
//! from the kernel's list of mappings, both of the calling process. The segments of the program,
//! and of the libraries that it was started with, stay in place until it ends. No reference into
//! one is ever formed. The replacement of a part holds the same bytes and gives the same access, in
//! one step of the kernel (mremap(2)). A thread that reads or executes the part meanwhile sees no
//! difference. A thread that writes to it would lose its writes between copy and switch. So callers
//! move writable segments only while the process has one thread, and signals wait meanwhile.

#![allow(unsafe_code)]

use crate::c_library;
use libc::{c_int, c_void};
use megapage_inside::own_mappings::OwnMapping;
use megapage_inside::{
    Borrowed, Descriptor, Errno, NotMoved, Owned, Reservation, is_plausible, without_signals,
};
use megapage_units::{BASE_PAGE, HUGE_2M};
use std::ffi::CStr;
use std::fmt;

/// LOAD segment of the program or of a loaded library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadedSegment {
    start: usize,
    file_end: usize,
    end: usize,
    write: bool,
}

impl LoadedSegment {
    /// Returns the first address, rounded down to a page.
    pub fn start(&self) -> usize {
        self.start
    }

    /// Returns the first address after the bytes that the file holds of it, rounded up to a page.
    pub fn file_end(&self) -> usize {
        self.file_end
    }

    /// Returns the first address after it (.bss included), rounded up to a page.
    pub fn end(&self) -> usize {
        self.end
    }

    /// Returns true if the file asks for a writable segment. Such a segment belongs to this
    /// process, and its contents differ from the file's.
    pub fn write(&self) -> bool {
        self.write
    }
}

/// Calls `visit` with every LOAD segment of every loaded object (dl_iterate_phdr(3)). The first
/// argument is the object's place in the loader's list, 0 for the program. The second is its name,
/// empty for the program. The loader's lock is held meanwhile.
pub fn loaded_segments(mut visit: impl FnMut(usize, &CStr, LoadedSegment)) {
    struct State<'a> {
        visit: &'a mut dyn FnMut(usize, &CStr, LoadedSegment),
        number: usize,
    }
    unsafe extern "C" fn object(info: *mut libc::dl_phdr_info, _: usize, state: *mut c_void) -> c_int {
        // SAFETY: the loader's contract: `info` is valid during the call; the state is the one that
        // is passed below.
        let (info, state) = unsafe { (&*info, &mut *state.cast::<State<'_>>()) };
        // SAFETY: the loader keeps the headers mapped as long as the object is loaded.
        let headers = unsafe { std::slice::from_raw_parts(info.dlpi_phdr, usize::from(info.dlpi_phnum)) };
        // SAFETY: a name is a C string or null.
        let name = if info.dlpi_name.is_null() { c"" } else { unsafe { CStr::from_ptr(info.dlpi_name) } };
        for header in headers.iter().filter(|header| header.p_type == libc::PT_LOAD) {
            let start = (info.dlpi_addr as usize).wrapping_add(header.p_vaddr as usize);
            let segment = LoadedSegment {
                start: start & !(BASE_PAGE - 1),
                file_end: (start + header.p_filesz as usize).next_multiple_of(BASE_PAGE),
                end: (start + header.p_memsz as usize).next_multiple_of(BASE_PAGE),
                write: header.p_flags & libc::PF_W != 0,
            };
            (state.visit)(state.number, name, segment);
        }
        state.number += 1;
        0
    }
    let mut state = State { visit: &mut visit, number: 0 };
    // SAFETY: the callback has the type that is asked for, and the state outlives the call.
    unsafe { libc::dl_iterate_phdr(Some(object), (&raw mut state).cast()) };
}

/// Overlap of one mapping and one LOAD segment. Plain data: copying it copies no memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    start: usize,
    end: usize,
    protection: c_int,
    file: bool,
    segment_write: bool,
    /// First address after the bytes that the segment has of its file.
    segment_file_end: usize,
    /// First address after the file's mapping: before the addresses that were reserved behind it.
    file_end: usize,
}

impl Part {
    /// Returns the part of this segment in this mapping. Returns `None` if they have no address in
    /// common, or if it cannot be copied: it is shared with others, or not readable.
    pub fn of(segment: &LoadedSegment, mapping: &OwnMapping) -> Option<Part> {
        let (start, end) = (segment.start.max(mapping.start), segment.end.min(mapping.end));
        let copyable = !mapping.shared && mapping.protection & libc::PROT_READ != 0;
        (start < end && copyable).then_some(Part {
            start,
            end,
            protection: mapping.protection,
            file: mapping.file,
            segment_write: segment.write,
            segment_file_end: segment.file_end,
            file_end: end,
        })
    }

    /// Returns the first address.
    pub fn start(&self) -> usize {
        self.start
    }

    /// Returns the first address after it.
    pub fn end(&self) -> usize {
        self.end
    }

    /// Returns true if a file is mapped; otherwise it is anonymous memory (.bss).
    pub fn is_file(&self) -> bool {
        self.file
    }

    /// Returns true if it is anonymous memory at a place of the segment that came from the file: it
    /// was moved before.
    pub fn was_moved(&self) -> bool {
        !self.file && self.start < self.segment_file_end
    }

    /// Returns true if it can be written, or belongs to a segment that the file asks to be
    /// writable. Memory that is made read-only after relocation is included.
    pub fn is_data(&self) -> bool {
        self.segment_write || self.protection & libc::PROT_WRITE != 0
    }

    /// Returns true if it can be written and executed: code that changes itself.
    pub fn is_open_code(&self) -> bool {
        self.protection & (libc::PROT_WRITE | libc::PROT_EXEC) == libc::PROT_WRITE | libc::PROT_EXEC
    }

    /// Returns the whole blocks of 2 MiB in it; `None` if there is none.
    pub fn whole_blocks(self) -> Option<Part> {
        let (start, end) = (self.start.next_multiple_of(HUGE_2M), self.end & !(HUGE_2M - 1));
        (start < end).then_some(Part { start, end, ..self })
    }

    /// Returns `length` bytes from `offset` on. Panics if that is not inside.
    pub fn piece(self, offset: usize, length: usize) -> Part {
        assert!(length > 0 && offset.checked_add(length).is_some_and(|end| end <= self.end - self.start));
        Part { start: self.start + offset, end: self.start + offset + length, ..self }
    }

    /// Reserves the addresses behind it up to `end`, as readable zeros. EEXIST if anything is
    /// mapped there.
    pub fn reserve_behind(&self, end: usize) -> Result<Reservation, Errno> {
        let length = end.checked_sub(self.end).filter(|length| *length > 0).ok_or(Errno(libc::EINVAL))?;
        let range = Borrowed::new(self.end, length).reserve()?;
        range.protect(libc::PROT_READ)?;
        Ok(range)
    }

    /// Returns this part together with the range right behind it, which was reserved for it.
    pub fn with(self, behind: Borrowed) -> Part {
        assert_eq!(self.end, behind.start());
        Part { end: behind.end(), ..self }
    }

    fn range(&self) -> Owned<'_> {
        // SAFETY: a part of a program that is loaded. It is copied, and replaced by the same bytes,
        // so that pointers into it stay valid.
        unsafe { Owned::of_allocator(self.start, self.end - self.start) }
    }

    /// Reads it into memory (MADV_POPULATE_READ, Linux 5.14). A failure is an error, not a signal.
    /// EFAULT: the file has become shorter.
    pub fn read_in(&self) -> Result<(), Errno> {
        self.range().read_in()
    }

    /// Returns true if any page of it is the process's copy, not the file's. In a read-only mapping
    /// of a file, such a page was written in spite of its access. Causes are a uprobe, a debugger's
    /// breakpoint, or a relocation of text. Reads /proc/self/pagemap
    /// (Documentation/admin-guide/mm/pagemap.rst). A page in memory or in swap has bit 61 set if it
    /// is the file's.
    pub fn has_own_pages(&self) -> Result<bool, Errno> {
        const PRESENT_OR_SWAPPED: u64 = 3 << 62;
        const OF_FILE: u64 = 1 << 61;
        let file = Descriptor::open(c"/proc/self/pagemap")?;
        let mut entries = [0u64; 512];
        let (mut page, end) = (self.start / BASE_PAGE, self.file_end.min(self.end) / BASE_PAGE);
        while page < end {
            let most = entries.len().min(end - page);
            let read = match file.read_words(&mut entries[..most], 8 * page) {
                Err(Errno(libc::EINTR)) => continue,
                Ok(0) => return Err(Errno(libc::EIO)),
                read => &entries[..read?],
            };
            if read.iter().any(|entry| entry & PRESENT_OR_SWAPPED != 0 && entry & OF_FILE == 0) {
                return Ok(true);
            }
            page += read.len();
        }
        Ok(false)
    }

    /// Asks for transparent huge pages at page faults from now on (MADV_HUGEPAGE). Copies nothing.
    pub fn advise_thp(&self) -> Result<(), Errno> {
        self.range().advise_thp()
    }

    /// Names it in `/proc/PID/maps` and `smaps` as `[anon:NAME]` (PR_SET_VMA, Linux 5.17). EINVAL:
    /// the kernel was built without names; EBADF: it is hugetlb memory.
    pub fn name(&self, name: &CStr) -> Result<(), Errno> {
        const PR_SET_VMA: c_int = 0x5356_4d41;
        const PR_SET_VMA_ANON_NAME: libc::c_ulong = 0;
        let length = (self.end - self.start) as libc::c_ulong;
        // SAFETY: the name is a C string, which the kernel copies; a name changes no contents.
        let answer = unsafe {
            libc::prctl(PR_SET_VMA, PR_SET_VMA_ANON_NAME, self.start as libc::c_ulong, length, name.as_ptr())
        };
        if answer == 0 { Ok(()) } else { Err(Errno::last()) }
    }

    /// Copies it into `pages`, which are as long, populated and writable. Gives those the same
    /// access, never more, and puts them in its place. Signals wait meanwhile. EACCES: the process
    /// may not make executable the memory that it has written (PR_SET_MDWE of prctl(2), SELinux).
    /// EBUSY: another process wrote into a read-only part of a file during the copy (see
    /// [`Part::has_own_pages`]). On an error the part is as it was, and the pages are released.
    pub fn replace_by(&self, pages: Reservation) -> Result<(), Errno> {
        assert_eq!(pages.len(), self.end - self.start);
        // mremap unmaps its target before it checks if the memory may be counted twice for a
        // moment.
        if !is_plausible(pages.len()) {
            return Err(Errno::ENOMEM);
        }
        without_signals(|| {
            // SAFETY: the pages are writable, and the part is readable. No other thread writes to
            // it: see the header.
            unsafe { pages.copy_from(self.range().view()) };
            if self.file && !self.is_data() && self.has_own_pages()? {
                return Err(Errno(libc::EBUSY));
            }
            pages.protect(self.protection)?;
            pages.move_over(&self.range()).map_err(|NotMoved { pages, errno, target_emptied }| {
                // Otherwise the part is as it was: nothing may be mapped over code that is being
                // executed.
                if target_emptied {
                    self.restore_from(pages.view());
                }
                errno
            })
        })
    }

    /// Puts the bytes back from a copy, after the kernel has unmapped them and then failed. The
    /// part is reserved and inaccessible before.
    fn restore_from(&self, pages: Borrowed) {
        let range = self.range();
        if range.open().is_ok() {
            // SAFETY: the range is open now, and the pages are as they were filled.
            unsafe { range.copy_from(pages) };
            let _ = range.protect(self.protection);
        }
    }
}

/// Step of [`try_replacing`] that the kernel refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// Making written memory executable.
    Execute(Errno),
    /// Making or moving a mapping.
    Move(Errno),
}

impl fmt::Display for Refused {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (what, errno) = match self {
            Refused::Execute(errno) => ("memory that was written cannot be made executable", errno),
            Refused::Move(errno) => ("mappings cannot be made and moved", errno),
        };
        let error = std::io::Error::from(*errno);
        write!(
            f,
            "{what} here ({error}): prctl(PR_SET_MDWE), a seccomp filter or a security module forbids it"
        )
    }
}

/// Returns the sanitizer (`asan`, `tsan`, `msan`, `hwasan`) whose runtime is part of the process,
/// if any. Such a runtime lays out the address space itself. Asks the loader (dlsym(3)) for its
/// entry point.
pub fn own_sanitizer() -> Option<&'static str> {
    let known = [
        ("asan", c"__asan_init"),
        ("tsan", c"__tsan_init"),
        ("msan", c"__msan_init"),
        ("hwasan", c"__hwasan_init"),
    ];
    // SAFETY: the name is a C string, and the address that comes back is not followed.
    let is_there = |name: &CStr| !unsafe { libc::dlsym(libc::RTLD_DEFAULT, name.as_ptr()) }.is_null();
    let found = known.into_iter().find(|(_, entry)| is_there(entry)).map(|(name, _)| name);
    // Clears the error of the failed search, which the program would get next.
    c_library::dlerror();
    found
}

/// Tries on its own pages what [`Part::replace_by`] does to a program's code. If the kernel refuses
/// it to the calling process (PR_SET_MDWE, a seccomp filter, SELinux), it also refuses it to the
/// programs that this process executes.
pub fn try_replacing() -> Result<(), Refused> {
    let target = Reservation::new(BASE_PAGE, BASE_PAGE).map_err(Refused::Move)?;
    let page = Reservation::new(BASE_PAGE, BASE_PAGE).map_err(Refused::Move)?;
    page.open().map_err(Refused::Move)?;
    page.protect(libc::PROT_READ | libc::PROT_EXEC).map_err(Refused::Execute)?;
    page.move_over(&target).map_err(|refused| Refused::Move(refused.errno))
}

/// Ends the process without running its exit handlers (_exit(2)).
pub fn exit_at_once(status: i32) -> ! {
    c_library::_exit(status)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mapped::Mapped;
    use crate::{KernelRoot, smaps};
    use megapage_inside::own_mappings::{mapping_of, own_mappings};
    use std::os::fd::AsFd;
    use std::os::unix::fs::FileExt;
    use std::ptr;

    #[test]
    fn our_own_segments_and_mappings_are_listed_as_others_list_them() {
        let mut segments = Vec::new();
        loaded_segments(|object, name, segment| segments.push((object, name.to_owned(), segment)));
        let program: Vec<_> = segments.iter().filter(|(object, _, _)| *object == 0).collect();
        assert!(program.len() >= 2 && program[0].1.is_empty(), "{program:?}");
        assert!(segments.iter().any(|(_, name, _)| name.to_str().unwrap().contains("libc.so")));
        let code = our_own_segments_and_mappings_are_listed_as_others_list_them as *const () as usize;
        let holds = |start: usize, end: usize| (start..end).contains(&code);
        let (_, _, text) = program.iter().find(|(_, _, it)| holds(it.start, it.end)).unwrap();
        assert!(!text.write());
        let mut found = None;
        own_mappings(|mapping| {
            if holds(mapping.start, mapping.end) {
                found = Some(mapping);
            }
        })
        .unwrap();
        let found = found.unwrap();
        assert_eq!(found.protection, libc::PROT_READ | libc::PROT_EXEC);
        assert!(found.file && !found.shared);
        let listed = smaps::read_own_smaps(&KernelRoot::live()).unwrap();
        assert!(
            listed
                .iter()
                .any(|it| it.range.start() == found.start as u64 && it.range.end() == found.end as u64)
        );
        let part = Part::of(text, &found).unwrap();
        assert!(part.is_file() && !part.is_data());
    }

    #[test]
    fn lines_of_the_kernel_are_read() {
        let line = b"7f12a000-7f32c000 rw-p 00001000 fe:00 1835016    /lib/x y";
        let mapping = mapping_of(line).unwrap();
        assert_eq!((mapping.start, mapping.end), (0x7f12_a000, 0x7f32_c000));
        assert!(mapping.file && !mapping.shared);
        assert_eq!(mapping.protection, libc::PROT_READ | libc::PROT_WRITE);
        let anonymous = mapping_of(b"00400000-00600000 r--s 00000000 00:00 0").unwrap();
        assert!(!anonymous.file && anonymous.shared);
        assert_eq!(mapping_of(b"no line"), None);
        let segment =
            LoadedSegment { start: 0x7f00_0000, file_end: 0x7f20_0000, end: 0x7f31_0000, write: true };
        let part = Part::of(&segment, &mapping).unwrap();
        assert_eq!((part.start(), part.end(), part.is_data()), (0x7f12_a000, 0x7f31_0000, true));
        assert_eq!(part.whole_blocks(), None);
        assert_eq!(Part::of(&segment, &anonymous), None);
        // The program has changed the mapping itself, in a segment that is not writable in the
        // file.
        let constant = LoadedSegment { write: false, ..segment };
        assert!(Part::of(&constant, &mapping).unwrap().is_data());
        let read = OwnMapping { protection: libc::PROT_READ, ..mapping };
        let part_of_code = Part::of(&constant, &read).unwrap();
        assert!(!part_of_code.is_data() && !part_of_code.was_moved());
        let open = libc::PROT_READ | libc::PROT_WRITE | libc::PROT_EXEC;
        assert!(!part.is_open_code());
        assert!(Part::of(&constant, &OwnMapping { protection: open, ..mapping }).unwrap().is_open_code());
        assert!(Part::of(&constant, &OwnMapping { file: false, ..read }).unwrap().was_moved());
        let long = Part { start: 0x10_1000, end: 0x90_1000, ..part };
        let whole = long.whole_blocks().unwrap();
        assert_eq!((whole.start(), whole.end()), (0x20_0000, 0x80_0000));
        assert_eq!(whole.piece(HUGE_2M, HUGE_2M).start(), 0x40_0000);
    }

    /// Writes to a page of a read-only mapping of a file, as a breakpoint does, which makes it the
    /// process's copy.
    #[test]
    fn pages_that_are_not_the_files_are_distinguished() {
        let file = std::fs::File::open("/proc/self/exe").unwrap();
        let length = 4 * BASE_PAGE;
        let mapped = Mapped::file(file.as_fd(), length, libc::PROT_READ, libc::MAP_PRIVATE).unwrap();
        let (start, end) = (mapped.range().start() as usize, mapped.range().end() as usize);
        let segment = LoadedSegment { start, file_end: end, end, write: false };
        let mut part = None;
        own_mappings(|mapping| part = part.or(Part::of(&segment, &mapping))).unwrap();
        let part = part.unwrap();
        assert!(part.is_file());
        part.read_in().unwrap();
        assert_eq!(part.has_own_pages(), Ok(false));
        let memory = crate::own_memory().unwrap();
        memory.write_all_at(&[0xcc], (start + 2 * BASE_PAGE) as u64).unwrap();
        assert_eq!(part.has_own_pages(), Ok(true));
        assert_eq!(part.piece(0, 2 * BASE_PAGE).file_end, part.file_end);
        assert_eq!(part.piece(0, 2 * BASE_PAGE).has_own_pages(), Ok(false));
        assert_eq!(part.piece(2 * BASE_PAGE, BASE_PAGE).has_own_pages(), Ok(true));
        let pages = Reservation::new(length, BASE_PAGE).unwrap();
        pages.open().unwrap();
        assert_eq!(part.replace_by(pages), Err(Errno(libc::EBUSY)), "it stays the file's mapping");
    }

    /// Replaces three pages of code that this test has made by other pages, and executes them.
    #[test]
    fn a_part_keeps_its_bytes_and_its_access() {
        let code = Reservation::new(4 * BASE_PAGE, BASE_PAGE).unwrap();
        code.open().unwrap();
        let memory = crate::own_memory().unwrap();
        for page in 0..3 {
            // `mov $page, %eax; ret`.
            let function = [0xb8, page as u8, 0, 0, 0, 0xc3];
            memory.write_all_at(&function, (code.start() + page * BASE_PAGE) as u64).unwrap();
        }
        code.protect(libc::PROT_READ | libc::PROT_EXEC).unwrap();
        let mapping = || {
            let mut found = None;
            own_mappings(|it| {
                if it.start <= code.start() && code.start() < it.end {
                    found = Some(it);
                }
            })
            .unwrap();
            found.unwrap()
        };
        let end = code.start() + 3 * BASE_PAGE;
        let segment = LoadedSegment { start: code.start(), file_end: end, end, write: false };
        let before = mapping();
        let part = Part::of(&segment, &before).unwrap();
        part.read_in().unwrap();
        assert_eq!(part.reserve_behind(part.end() + BASE_PAGE).unwrap_err(), Errno(libc::EEXIST));
        let pages = Reservation::new(3 * BASE_PAGE, BASE_PAGE).unwrap();
        pages.open().unwrap();
        part.replace_by(pages).unwrap();
        assert_eq!(mapping().protection, before.protection);
        for page in 0..3 {
            // SAFETY: code of that type was written there, and is executable.
            let function: extern "C" fn() -> c_int = unsafe {
                std::mem::transmute(ptr::with_exposed_provenance::<()>(code.start() + page * BASE_PAGE))
            };
            assert_eq!(function(), page as c_int);
        }
        code.release().unwrap();
    }

    #[test]
    fn what_a_program_would_be_refused_is_found_out() {
        assert_eq!(try_replacing(), Ok(()));
    }
}
