//! Kinds of page that page frames hold: `/proc/kpageflags`
//! (Documentation/admin-guide/mm/pagemap.rst). Its mode lets only root open it. No capability is
//! needed, unlike for the numbers of frames in a page map.

use crate::{KernelError, KernelRoot};
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;

/// The flags of one page frame.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PageFlags(pub u64);

impl PageFlags {
    const fn has(self, bit: u32) -> bool {
        self.0 & 1 << bit != 0
    }

    /// Returns true for the first page of a folio of more than one (`COMPOUND_HEAD`).
    pub const fn is_head(self) -> bool {
        self.has(15)
    }

    /// Returns true for a later page of a folio of more than one (`COMPOUND_TAIL`).
    pub const fn is_tail(self) -> bool {
        self.has(16)
    }

    /// Returns true for a hugetlb page (`HUGE`).
    pub const fn is_hugetlb(self) -> bool {
        self.has(17)
    }

    /// Returns true for a transparent huge page, of any size where the kernel knows several
    /// (`THP`).
    pub const fn is_thp(self) -> bool {
        self.has(22)
    }

    /// Returns true for the shared page of zeros, small or huge (`ZERO_PAGE`).
    pub const fn is_zero_page(self) -> bool {
        self.has(24)
    }

    /// Returns true for an idle page (`IDLE`, where the kernel tracks that). The idle-page bitmap
    /// or DAMON found it idle and cleared its accessed bits, and the kernel has not found it
    /// accessed since.
    pub const fn is_idle(self) -> bool {
        self.has(25)
    }
}

/// The flags of the machine's page frames.
#[derive(Debug)]
pub struct FrameFlags {
    file: File,
    path: PathBuf,
}

/// The largest folio that is mapped by base pages and counted by order: 2 MiB, 512 frames.
const LARGEST: u64 = 512;

impl FrameFlags {
    /// Opens the file: EACCES without root, ENOENT on a kernel without CONFIG_PROC_PAGE_MONITOR.
    pub fn open(root: &KernelRoot) -> Result<FrameFlags, KernelError> {
        let path = root.path("proc/kpageflags");
        match File::open(&path) {
            Ok(file) => Ok(FrameFlags { file, path }),
            Err(source) => Err(KernelError::Io { path, source }),
        }
    }

    /// Reads the flags of `count` frames from `first` on. Beyond the last frame of the machine they
    /// are empty.
    pub fn read(&self, first: u64, count: usize) -> Result<Vec<PageFlags>, KernelError> {
        let mut bytes = vec![0; count * size_of::<u64>()];
        let mut filled = 0;
        while filled < bytes.len() {
            match self.file.read_at(&mut bytes[filled..], first * size_of::<u64>() as u64 + filled as u64) {
                Ok(0) => break,
                Ok(read) => filled += read,
                Err(source) => return Err(KernelError::Io { path: self.path.clone(), source }),
            }
        }
        let word = |chunk: &[u8]| u64::from_ne_bytes(chunk.try_into().expect("a chunk of eight bytes"));
        Ok(bytes.chunks_exact(8).map(|chunk| PageFlags(word(chunk))).collect())
    }

    /// Returns the folio that `frame` belongs to: its first frame, and its order (0: one base page;
    /// 9: 2 MiB). Folios of more than 2 MiB are shown in pieces of 2 MiB. The answer is only a
    /// hint: the folio may be split or freed at any moment.
    pub fn folio(&self, frame: u64) -> Result<(u64, u32), KernelError> {
        let base = frame - frame % LARGEST;
        Ok(folio_at(&self.read(base, LARGEST as usize)?, base, frame))
    }
}

/// Returns the folio of `frame`, by the 512 flags from `base` on. A folio lies at a multiple of its
/// length.
fn folio_at(flags: &[PageFlags], base: u64, frame: u64) -> (u64, u32) {
    let at = (frame - base) as usize;
    if !flags[at].is_head() && !flags[at].is_tail() {
        return (frame, 0);
    }
    let head = (0..=at).rev().find(|index| !flags[*index].is_tail()).unwrap_or(0);
    let length = 1 + flags[head + 1..].iter().take_while(|flags| flags.is_tail()).count();
    (base + head as u64, length.ilog2())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pagemap::Pagemap;
    use megapage_testing::require_root;
    use megapage_units::{BASE_PAGE, Pid, VirtRange};

    #[test]
    fn a_folio_is_found_from_any_of_its_pages() {
        let mut flags = vec![PageFlags(1 << 5); 512];
        flags[16] = PageFlags(1 << 15);
        flags[17..32].fill(PageFlags(1 << 16));
        flags[32] = PageFlags(1 << 15);
        flags[33] = PageFlags(1 << 16);
        let folio = |page: u64| folio_at(&flags, 5120, 5120 + page);
        assert_eq!(folio(15), (5135, 0));
        assert_eq!([folio(16), folio(23), folio(31)], [(5136, 4); 3]);
        assert_eq!(folio(33), (5152, 1));
        assert_eq!(folio(34), (5154, 0));
        // A piece of a larger folio holds tails alone.
        assert_eq!(folio_at(&[PageFlags(1 << 16); 512], 1024, 1030), (1024, 9));
    }

    #[test]
    fn our_own_page_is_user_memory_and_beyond_the_last_frame_there_is_nothing() {
        if !require_root() {
            return;
        }
        let page = vec![1u8; 2 * BASE_PAGE];
        let start = (page.as_ptr().addr() as u64).next_multiple_of(BASE_PAGE as u64);
        let root = KernelRoot::live();
        let pagemap = Pagemap::open(&root, Pid(std::process::id() as i32)).unwrap();
        let range = VirtRange::new(start, start + BASE_PAGE as u64).unwrap();
        let flags = FrameFlags::open(&root).unwrap();
        // The kernel may move the page meanwhile: only what was read of a frame that still holds
        // the page counts.
        let (own, folio) = loop {
            let frame = || pagemap.entries(range).unwrap()[0].frame();
            let Some(before) = frame() else {
                return megapage_testing::skip("needs CAP_SYS_ADMIN for page frames");
            };
            let found = (flags.read(before, 1).unwrap()[0], flags.folio(before).unwrap());
            if frame() == Some(before) {
                break found;
            }
        };
        assert!(!own.is_zero_page() && !own.is_hugetlb() && own != PageFlags::default(), "{own:?}");
        assert!(folio.1 <= 9);
        assert_eq!(flags.read(u64::MAX >> 20, 2).unwrap(), [PageFlags::default(); 2]);
    }
}
