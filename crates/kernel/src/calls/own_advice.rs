//! Advice for memory of this process that changes no contents (madvise(2)).

use megapage_inside::Borrowed;
use megapage_units::VirtRange;
use std::io;

/// Advice to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Advice {
    /// Transparent huge pages are wanted (MADV_HUGEPAGE). EINVAL if the kernel has none, or the
    /// mapping can have none.
    Huge,
    /// Neither the next access nor khugepaged may map a transparent huge page from now on
    /// (MADV_NOHUGEPAGE). Pages that are mapped already stay. EINVAL if the kernel has none.
    NoHuge,
    /// Collapse of the memory into a transparent huge page now (MADV_COLLAPSE, Linux 6.1). EAGAIN,
    /// EBUSY, ENOMEM if none was found; EINVAL if the mapping can have none.
    Collapse,
    /// Page fault of every page now, for writing (MADV_POPULATE_WRITE, Linux 5.14). EFAULT if an
    /// access would raise SIGBUS.
    Populate,
    /// Page faults of all pages now, for reading (MADV_POPULATE_READ, Linux 5.14). EFAULT if an
    /// access would raise SIGBUS.
    PopulateRead,
}

/// Gives advice for a range of base pages. ENOMEM if a part of it is not mapped.
pub fn give(range: VirtRange, advice: Advice) -> io::Result<()> {
    let part = Borrowed::new(range.start() as usize, range.len().0 as usize);
    let given = match advice {
        Advice::Huge => part.advise_thp(),
        Advice::NoHuge => part.advise_no_thp(),
        Advice::Collapse => part.collapse(),
        Advice::Populate => part.populate(),
        Advice::PopulateRead => part.read_in(),
    };
    given.map_err(io::Error::from)
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_units::BASE_PAGE;

    #[test]
    fn advice_changes_no_byte() {
        let memory = vec![7u8; 4 << 20];
        let start = (memory.as_ptr().addr() as u64).next_multiple_of(BASE_PAGE as u64);
        let range = VirtRange::new(start, start + (3 << 20)).unwrap();
        for advice in [Advice::Huge, Advice::Populate, Advice::Collapse, Advice::NoHuge] {
            // A kernel may lack any of them.
            let _ = give(range, advice);
            assert!(memory.iter().all(|byte| *byte == 7), "{advice:?}");
        }
    }

    #[test]
    fn what_is_not_mapped_is_refused() {
        let unmapped = VirtRange::new(BASE_PAGE as u64, 2 * BASE_PAGE as u64).unwrap();
        assert!(give(unmapped, Advice::Populate).is_err());
    }
}
