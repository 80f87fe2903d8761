//! Reasons for memory on base pages: those of `megapage doctor --why` that smaps and the settings
//! show.

use crate::kind::Kind;
use megapage_kernel::smaps::{Mapping, MappingFlags};
use megapage_kernel::thp::{ThpEnabled, ThpSettings, ThpShmem};
use megapage_units::{Bytes, HUGE_2M, PageSize};
use std::cmp::Reverse;

const HUGE: u64 = HUGE_2M as u64;

megapage_units::named! {
    /// Reasons for base pages. Names and meanings are those of `megapage doctor --why`
    /// (docs/doctor.md).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Why {
        /// A mapping of the kernel or a device.
        SpecialMapping = "special-mapping",
        /// The mapping holds no aligned 2 MiB.
        MappingSmall = "mapping-small",
        /// An edge of its mapping, outside of the aligned 2 MiB.
        MappingEdge = "mapping-edge",
        /// A file whose address and offset differ modulo 2 MiB.
        FileMisplaced = "file-misplaced",
        /// Shared memory whose address and offset differ modulo 2 MiB.
        SharedMisplaced = "shared-misplaced",
        /// Page cache of a file system without huge folios, or the program's own copies of it.
        FilePages = "file-pages",
        /// MADV_NOHUGEPAGE, or a stack of a thread (MAP_STACK).
        AdvisedAgainst = "advised-against",
        /// THP are set to `madvise`, and the program has not asked.
        NotAdvised = "not-advised",
        /// `shmem_enabled` is `advise`, and the program has not asked.
        SharedNotAdvised = "shared-not-advised",
        /// The tmpfs is mounted without `huge=`.
        TmpfsNotHuge = "tmpfs-not-huge",
        /// THP are set to `never`.
        ThpNever = "thp-never",
        /// The kernel has no THP.
        ThpAbsent = "thp-absent",
        /// PR_SET_THP_DISABLE.
        ThpDisabled = "thp-disabled-for-process",
        /// `shmem_enabled` is `never` or `deny`.
        ShmemThpOff = "shmem-thp-off",
        /// Memory that userfaultfd(2) watches.
        Userfault = "userfault",
        /// Not eligible according to the kernel, without a visible reason.
        NotEligible = "not-eligible",
        /// Regions of 2 MiB with too few base pages present.
        Sparse = "sparse",
        /// KSM has merged most of it: a collapse would undo that, and megapage does not.
        Merged = "merged",
        /// Nothing prevents a collapse now.
        NotCollapsedYet = "not-collapsed-yet",
        /// The preloaded heap has not asked for huge pages: its own account gives the reason.
        HeapsChoice = "heaps-choice",
        /// Memory that is swapped out.
        SwappedOut = "swapped-out",
        /// Unknown: nothing that is visible here prevents huge pages.
        Unexplained = "unexplained",
    }
}

/// Bytes by reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Base([Bytes; Why::ALL.len()]);

impl Base {
    pub(crate) fn add(&mut self, why: Why, bytes: Bytes) {
        self.0[why as usize] += bytes;
    }

    /// Moves unexplained bytes to a reason: `bytes`, or all if there are fewer.
    pub(crate) fn explain(&mut self, why: Why, bytes: Bytes) {
        let known = bytes.min(self.0[Why::Unexplained as usize]);
        self.0[Why::Unexplained as usize] = self.0[Why::Unexplained as usize].saturating_sub(known);
        self.add(why, known);
    }

    /// Returns the reasons that apply, the one for most bytes first.
    pub fn reasons(&self) -> Vec<(Why, Bytes)> {
        let all = Why::ALL.into_iter().map(|why| (why, self.0[why as usize]));
        let mut reasons: Vec<(Why, Bytes)> = all.filter(|(_, bytes)| *bytes > Bytes::ZERO).collect();
        reasons.sort_by_key(|(_, bytes)| Reverse(*bytes));
        reasons
    }
}

/// Promoters of the process's memory beside the kernel's own faults and khugepaged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Promoters {
    /// True if the launcher promotes from outside.
    pub outside: bool,
    /// True if a library of ours in the process promotes memory that the program maps itself (Linux
    /// 6.7).
    pub library: bool,
    /// True if the library also promotes shared memory that the program makes (`--shm`).
    pub library_shared: bool,
}

impl Promoters {
    /// Returns true if memory of this kind, with these permissions, is promoted under any setting.
    /// The library skips executable memory, such as heaps of runtimes that compile. Both promoters
    /// skip memory that is not writable.
    fn reach(self, permissions: &str, kind: Kind) -> bool {
        match kind {
            Kind::Shared => self.outside || self.library_shared,
            Kind::Heap | Kind::OwnMappings | Kind::RuntimeHeap => {
                self.outside && permissions.starts_with("rw")
                    || self.library && permissions.starts_with("rw-")
            }
            Kind::Files | Kind::Text | Kind::Stacks => false,
        }
    }

    /// Returns the base pages of a region's 512 that have to be present before it is made huge.
    /// `None` if only khugepaged does it.
    fn least_present(self, permissions: &str, kind: Kind) -> Option<u16> {
        match () {
            () if self.outside && self.reach(permissions, kind) => Some(crate::promoter::LEAST_PRESENT),
            () if self.reach(permissions, kind) => Some(megapage_memory::LEAST_PRESENT as u16),
            () => None,
        }
    }
}

/// Error: the machine's settings could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unread;

/// The machine's settings of THP; `None` on a kernel without THP.
pub type ThpRead = Result<Option<ThpSettings>, Unread>;

/// Facts that hold for all of a process's memory.
#[derive(Clone, Debug)]
pub struct Setting {
    /// The machine's settings; if they could not be read, no reason follows from them.
    pub thp: ThpRead,
    /// True if PR_SET_THP_DISABLE is set.
    pub disabled: bool,
    /// The promoters.
    pub promoters: Promoters,
    /// True if the preloaded heap provides malloc, and decides for each of its chunks.
    pub preloaded_heap: bool,
}

impl Setting {
    /// Returns the reason for the base pages of `mapping`; [`Why::Unexplained`] if smaps shows
    /// none.
    pub(crate) fn why(&self, mapping: &Mapping, kind: Kind) -> Why {
        let range = mapping.range;
        if mapping.is_special() {
            return Why::SpecialMapping;
        }
        if range.aligned_interior(HUGE).is_none() {
            return Why::MappingSmall;
        }
        let of_file = mapping.inode != 0 && mapping.kernel_page_size == PageSize::BASE;
        let is_shared = kind == Kind::Shared;
        let flags = mapping.flags();
        match () {
            () if flags.device => Why::SpecialMapping,
            () if (of_file || is_shared) && !mapping.agrees() => match is_shared {
                true => Why::SharedMisplaced,
                false => Why::FileMisplaced,
            },
            // The kernel's own statement that the file is eligible is trusted.
            () if of_file && !is_shared && !mapping.thp_eligible => Why::FilePages,
            () if flags.no_huge => Why::AdvisedAgainst,
            () if self.disabled => Why::ThpDisabled,
            () if self.is_heaps_choice(mapping, kind, flags) => Why::HeapsChoice,
            () if flags.userfault => Why::Userfault,
            () if mapping.ksm.0 > mapping.backing().base.0 / 2 => Why::Merged,
            () if of_file && !is_shared => Why::Unexplained,
            () => self.by_settings(mapping, kind, flags).unwrap_or(Why::Unexplained),
        }
    }

    /// Returns true if this belongs to the preloaded heap, which has not asked for huge pages
    /// there.
    fn is_heaps_choice(&self, mapping: &Mapping, kind: Kind, flags: MappingFlags) -> bool {
        self.preloaded_heap && kind == Kind::Heap && mapping.name != "[heap]" && !flags.huge
    }

    /// Returns the reason that follows from the machine's settings, if any.
    fn by_settings(&self, mapping: &Mapping, kind: Kind, flags: MappingFlags) -> Option<Why> {
        let Some(thp) = self.thp.as_ref().ok()? else { return Some(Why::ThpAbsent) };
        let promoted = self.promoters.reach(&mapping.permissions, kind);
        let advised = flags.huge;
        if kind == Kind::Shared {
            let own = ["/memfd:", "/SYSV", "/dev/zero", "/anon_hugepage"];
            let of_mount =
                mapping.name.starts_with('/') && !own.iter().any(|start| mapping.name.starts_with(start));
            return match thp.shared(PageSize::HUGE_2M) {
                ThpShmem::Deny => Some(Why::ShmemThpOff),
                _ if promoted || mapping.thp_eligible => None,
                _ if of_mount => Some(Why::TmpfsNotHuge),
                ThpShmem::Never => Some(Why::ShmemThpOff),
                ThpShmem::Advise if !advised => Some(Why::SharedNotAdvised),
                _ => Some(Why::NotEligible),
            };
        }
        match thp.anonymous(PageSize::HUGE_2M) {
            // The library then promotes nothing.
            ThpEnabled::Never if !self.promoters.outside => Some(Why::ThpNever),
            _ if promoted => None,
            ThpEnabled::Madvise if !advised => Some(Why::NotAdvised),
            _ if !mapping.thp_eligible => Some(Why::NotEligible),
            _ => None,
        }
    }

    /// Returns the reason why a region of 2 MiB is not huge, by the number of its base pages
    /// present. No huge page maps the region, and it lies wholly in a mapping with these
    /// permissions.
    pub(crate) fn why_region(&self, present: u16, permissions: &str, kind: Kind) -> Why {
        let khugepaged = self.thp.as_ref().ok().and_then(|thp| thp.as_ref()?.khugepaged);
        let by_limit = khugepaged.map(|it| 512u16.saturating_sub(it.max_ptes_none.min(512) as u16));
        match self.promoters.least_present(permissions, kind).or(by_limit) {
            Some(least) if present < least => Why::Sparse,
            Some(_) => Why::NotCollapsedYet,
            None => Why::Unexplained,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_kernel::thp::{Khugepaged, ThpDefrag};
    use megapage_units::VirtRange;

    const MIB: u64 = 1 << 20;

    fn setting(enabled: ThpEnabled, shmem: ThpShmem) -> Setting {
        let khugepaged = Khugepaged {
            defrag: true,
            max_ptes_none: 64,
            pages_to_scan: 4096,
            scan_sleep_ms: 10,
            pages_collapsed: 0,
        };
        let thp = ThpSettings {
            enabled,
            defrag: ThpDefrag::Madvise,
            shmem: Some(shmem),
            pmd_size: PageSize::HUGE_2M.bytes(),
            sizes: Vec::new(),
            khugepaged: Some(khugepaged),
            shrink_underused: None,
        };
        Setting {
            thp: Ok(Some(thp)),
            disabled: false,
            promoters: Promoters::default(),
            preloaded_heap: false,
        }
    }

    fn mapping(flags: &str, eligible: bool) -> Mapping {
        let plain = Mapping::untouched(VirtRange::new(4 * MIB, 12 * MIB).unwrap(), "rw-p", "");
        Mapping { vm_flags: flags.into(), thp_eligible: eligible, ..plain }
    }

    fn object(name: &str, flags: &str, eligible: bool) -> Mapping {
        let permissions = "rw-s".to_string();
        Mapping { name: name.into(), inode: 7, permissions, ..mapping(flags, eligible) }
    }

    #[test]
    fn the_shape_of_a_mapping_comes_first() {
        let set = setting(ThpEnabled::Madvise, ThpShmem::Never);
        let why = |mapping: &Mapping, kind| set.why(mapping, kind);
        let small =
            Mapping { range: VirtRange::new(3 * MIB, 5 * MIB).unwrap(), ..mapping("rd wr nh", false) };
        assert_eq!(why(&small, Kind::Stacks), Why::MappingSmall);
        let file = object("/var/a", "rd", false);
        assert_eq!(why(&file, Kind::Files), Why::FilePages);
        let beyond = Mapping { offset: 4096, ..file.clone() };
        assert_eq!(why(&beyond, Kind::Files), Why::FileMisplaced);
        assert_eq!(why(&Mapping { thp_eligible: true, ..file }, Kind::Text), Why::Unexplained);
        let memory = object("/memfd:a (deleted)", "rd wr sh", false);
        assert_eq!(why(&Mapping { offset: 4096, ..memory }, Kind::Shared), Why::SharedMisplaced);
        let device = object("/dev/gpu", "rd wr sh pf io", false);
        assert_eq!(why(&device, Kind::Files), Why::SpecialMapping);
    }

    #[test]
    fn what_was_asked_for_comes_before_the_settings() {
        let mut set = setting(ThpEnabled::Madvise, ThpShmem::Never);
        assert_eq!(set.why(&mapping("rd wr nh", false), Kind::Stacks), Why::AdvisedAgainst);
        assert_eq!(set.why(&mapping("rd wr hg um", true), Kind::Heap), Why::Userfault);
        set.disabled = true;
        assert_eq!(set.why(&mapping("rd wr hg", true), Kind::Heap), Why::ThpDisabled);
    }

    #[test]
    fn settings_count_without_a_promoter() {
        let plain = mapping("rd wr", false);
        let advised = mapping("rd wr hg", true);
        let why = |set: &Setting, mapping: &Mapping, kind| set.why(mapping, kind);
        let mut set = setting(ThpEnabled::Madvise, ThpShmem::Never);
        assert_eq!(why(&set, &plain, Kind::Heap), Why::NotAdvised);
        assert_eq!(why(&set, &advised, Kind::Heap), Why::Unexplained);
        let memory = object("/memfd:a (deleted)", "rd wr sh", false);
        assert_eq!(why(&set, &memory, Kind::Shared), Why::ShmemThpOff);
        assert_eq!(why(&set, &object("/dev/shm/a", "rd wr sh", false), Kind::Shared), Why::TmpfsNotHuge);
        set.promoters.library = true;
        assert_eq!(why(&set, &plain, Kind::OwnMappings), Why::Unexplained, "a thread of ours looks at it");
        assert_eq!(why(&set, &memory, Kind::Shared), Why::ShmemThpOff, "but not at that");
        set.promoters.library_shared = true;
        assert_eq!(why(&set, &memory, Kind::Shared), Why::Unexplained, "unless asked to");
        assert_eq!(set.why_region(486, "rw-s", Kind::Shared), Why::Sparse);
        set.promoters.library_shared = false;
        set.promoters.outside = true;
        assert_eq!(why(&set, &memory, Kind::Shared), Why::Unexplained);
        let mut set = setting(ThpEnabled::Never, ThpShmem::Deny);
        assert_eq!(why(&set, &advised, Kind::Heap), Why::ThpNever);
        set.promoters.library = true;
        assert_eq!(why(&set, &advised, Kind::OwnMappings), Why::ThpNever, "it leaves everything alone then");
        set.promoters.outside = true;
        assert_eq!(why(&set, &plain, Kind::Heap), Why::Unexplained);
        assert_eq!(why(&set, &memory, Kind::Shared), Why::ShmemThpOff, "rules out a collapse, too");
        let set = setting(ThpEnabled::Always, ThpShmem::Advise);
        assert_eq!(why(&set, &plain, Kind::Heap), Why::NotEligible);
        assert_eq!(why(&set, &memory, Kind::Shared), Why::SharedNotAdvised);
        assert_eq!(why(&set, &object("/SYSV0 (deleted)", "hg", false), Kind::Shared), Why::NotEligible);
        assert_eq!(why(&set, &object("/SYSV0 (deleted)", "hg", true), Kind::Shared), Why::Unexplained);
        let unread = Setting { thp: Err(Unread), ..set.clone() };
        assert_eq!(why(&unread, &plain, Kind::Heap), Why::Unexplained);
        let absent = Setting { thp: Ok(None), ..set };
        assert_eq!(why(&absent, &plain, Kind::Heap), Why::ThpAbsent);
    }

    #[test]
    fn the_preloaded_heap_answers_for_what_it_has_not_asked_for() {
        let set = Setting { preloaded_heap: true, ..setting(ThpEnabled::Madvise, ThpShmem::Never) };
        assert_eq!(set.why(&mapping("rd wr", false), Kind::Heap), Why::HeapsChoice);
        assert_eq!(set.why(&mapping("rd wr hg", true), Kind::Heap), Why::Unexplained);
        let brk = Mapping { name: "[heap]".into(), ..mapping("rd wr", false) };
        assert_eq!(set.why(&brk, Kind::Heap), Why::NotAdvised);
        assert_eq!(set.why(&mapping("rd wr", false), Kind::OwnMappings), Why::NotAdvised);
    }

    #[test]
    fn a_region_is_sparse_by_the_limit_of_who_would_make_it_huge() {
        let mut set = setting(ThpEnabled::Always, ThpShmem::Never);
        let is_sparse = |set: &Setting, present, kind| set.why_region(present, "rw-p", kind) == Why::Sparse;
        assert!(is_sparse(&set, 447, Kind::Heap) && !is_sparse(&set, 448, Kind::Heap), "max_ptes_none");
        set.promoters.library = true;
        assert!(is_sparse(&set, 486, Kind::OwnMappings) && !is_sparse(&set, 487, Kind::OwnMappings));
        assert!(!is_sparse(&set, 448, Kind::Text), "the library leaves it to khugepaged");
        set.promoters.outside = true;
        assert!(is_sparse(&set, 255, Kind::Shared) && !is_sparse(&set, 256, Kind::Shared));
        let unread = Setting { thp: Err(Unread), promoters: Promoters::default(), ..set };
        assert_eq!(unread.why_region(512, "rw-p", Kind::Heap), Why::Unexplained);
    }

    #[test]
    fn merged_memory_is_not_waiting() {
        let mut set = setting(ThpEnabled::Always, ThpShmem::Never);
        set.promoters.outside = true;
        let of =
            |rss, ksm| Mapping { rss: Bytes::mib(rss), ksm: Bytes::mib(ksm), ..mapping("rd wr mg", true) };
        assert_eq!(set.why(&of(4, 3), Kind::Heap), Why::Merged);
        assert_eq!(set.why(&of(4, 2), Kind::Heap), Why::Unexplained);
    }

    #[test]
    fn what_can_be_executed_waits_for_no_library() {
        let mut set = setting(ThpEnabled::Madvise, ThpShmem::Never);
        set.promoters.library = true;
        let heap = Mapping { permissions: "rwxp".into(), ..mapping("rd wr ex", false) };
        assert_eq!(set.why(&heap, Kind::OwnMappings), Why::NotAdvised);
        assert_eq!(set.why(&mapping("rd wr", false), Kind::OwnMappings), Why::Unexplained);
        // khugepaged's limit applies to it.
        assert_eq!(set.why_region(460, "rwxp", Kind::OwnMappings), Why::NotCollapsedYet);
        assert_eq!(set.why_region(460, "rw-p", Kind::OwnMappings), Why::Sparse);
        set.promoters = Promoters { outside: true, ..Promoters::default() };
        assert_eq!(set.why(&heap, Kind::OwnMappings), Why::Unexplained);
    }

    #[test]
    fn only_what_was_not_explained_is_explained() {
        let mut base = Base::default();
        base.add(Why::Unexplained, Bytes(10));
        base.add(Why::MappingSmall, Bytes(7));
        base.explain(Why::Sparse, Bytes(8));
        base.explain(Why::MappingEdge, Bytes(8));
        let reasons = [(Why::Sparse, Bytes(8)), (Why::MappingSmall, Bytes(7)), (Why::MappingEdge, Bytes(2))];
        assert_eq!(base.reasons(), reasons);
        for (number, why) in Why::ALL.into_iter().enumerate() {
            assert_eq!(why as usize, number, "{}", why.name());
        }
    }
}
