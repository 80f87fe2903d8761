//! `/proc/PID/smaps`: how each mapping of a process is backed, as the kernel says
//! (Documentation/filesystems/proc.rst).
//!
//! Reading it walks the process's page tables under its mmap lock. That takes about 6.5 ms for each
//! GiB on base pages and far less for huge ones. Sample accordingly.

use crate::maps::MOST_MAPPINGS;
use crate::object::{ObjectId, object_of};
use crate::{KernelError, KernelRoot};
pub use megapage_snapshot::{BackingBytes, MappingFlags};
use megapage_units::{Bytes, HUGE_2M, PageSize, Pid, VirtRange};

/// One mapping (VMA) of a process. Byte values are the kernel's, at the time of the read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Mapping {
    /// The addresses.
    pub range: VirtRange,
    /// `rwxp` or `rwxs`, as in the maps file.
    pub permissions: String,
    /// Start in the file, in bytes.
    pub offset: u64,
    /// Major and minor number of the file system's device; (0, 0) for anonymous memory.
    pub device: (u32, u32),
    /// The inode of the file; 0 for anonymous memory.
    pub inode: u64,
    /// The file, `[heap]`, `[stack]`, `[anon:NAME]`, or empty.
    pub name: String,
    /// Page size that the kernel backs the mapping with: that of hugetlb pages where they back it,
    /// else 4 KiB (also for transparent huge pages).
    pub kernel_page_size: PageSize,
    /// Resident bytes; never counts hugetlb pages.
    pub rss: Bytes,
    /// Resident bytes, each page's divided by the number of times that it is mapped (`Pss`); never
    /// counts hugetlb pages.
    pub pss: Bytes,
    /// Resident bytes whose accessed bit is set, or that the kernel takes for referenced; never
    /// counts hugetlb pages. See [`crate::clear_refs`].
    pub referenced: Bytes,
    /// Resident bytes that other processes map as well (`Shared_Clean` and `Shared_Dirty`).
    pub shared: Bytes,
    /// Bytes of pages that KSM has merged (Linux 6.7), without those of the shared page of zeros.
    pub ksm: Bytes,
    /// Resident anonymous bytes.
    pub anonymous: Bytes,
    /// Bytes on 2 MiB transparent huge pages. The kernel does not show smaller ones (mTHP) here.
    pub anon_huge: Bytes,
    /// Shared memory (tmpfs, memfd) mapped by 2 MiB entries.
    pub shmem_pmd: Bytes,
    /// Page cache of a file mapped by 2 MiB entries.
    pub file_pmd: Bytes,
    /// Present hugetlb bytes, private and shared.
    pub hugetlb: Bytes,
    /// The part of `hugetlb` that other processes map as well.
    pub hugetlb_shared: Bytes,
    /// Bytes swapped out.
    pub swap: Bytes,
    /// True if a 2 MiB transparent huge page may be allocated here under the present settings.
    pub thp_eligible: bool,
    /// The kernel's flags of the mapping, in two-letter codes with a space between:
    /// `rd wr mr mw me ac`.
    pub vm_flags: String,
}

impl Mapping {
    /// Returns an anonymous mapping of base pages, with none present, by its line of the maps file.
    pub fn untouched(range: VirtRange, permissions: &str, name: &str) -> Mapping {
        let (permissions, name) = (permissions.to_string(), name.to_string());
        Mapping { range, permissions, name, ..Mapping::default() }
    }

    /// Returns true if the kernel's flag with this two-letter code is set, such as `hg` for
    /// madvise(MADV_HUGEPAGE) (Documentation/filesystems/proc.rst lists them).
    pub fn has_flag(&self, code: &str) -> bool {
        self.vm_flags.split(' ').any(|flag| flag == code)
    }

    /// Returns the flags that matter to huge pages.
    pub fn flags(&self) -> MappingFlags {
        let has = |code| self.has_flag(code);
        let allows = |index: usize, letter: u8| self.permissions.as_bytes().get(index) == Some(&letter);
        MappingFlags {
            read: allows(0, b'r'),
            write: allows(1, b'w'),
            execute: allows(2, b'x'),
            shared: allows(3, b's'),
            huge: has("hg"),
            no_huge: has("nh"),
            locked: has("lo"),
            userfault: has("um") || has("uw") || has("ui"),
            device: has("io") || has("pf") || has("mm"),
            mergeable: has("mg"),
            dont_fork: has("dc"),
        }
    }

    /// Returns true for private, writable, anonymous memory that is no stack: a program's heap lies
    /// in such memory. Private hugetlb mappings count, though the kernel names a file for them.
    pub fn is_heap_like(&self) -> bool {
        let writable_private = self.permissions.starts_with("rw") && self.permissions.ends_with('p');
        writable_private
            && !self.name.starts_with("[stack")
            && (self.inode == 0 || self.name.starts_with("/anon_hugepage"))
    }

    /// Returns true if the kernel has put this there for itself: `[vdso]`, `[vvar]`, `[uprobes]`.
    pub fn is_special(&self) -> bool {
        let named = ["[heap]", "[stack", "[anon"];
        self.name.starts_with('[') && !named.iter().any(|start| self.name.starts_with(start))
    }

    /// Returns the file or the shared memory that is mapped ([`object_of`]); `None` for anonymous
    /// memory.
    pub fn object(&self) -> Option<ObjectId> {
        object_of(self.device, self.inode, &self.name)
    }

    /// Returns true if 2 MiB entries can map this: address and offset agree modulo 2 MiB.
    pub fn agrees(&self) -> bool {
        self.range.start() % HUGE_2M as u64 == self.offset % HUGE_2M as u64
    }

    /// Returns true if a broker of pre-zeroed pages gave this memory ([`crate::extent`]).
    pub fn is_extent(&self) -> bool {
        self.name.strip_prefix("/memfd:").is_some_and(|name| name.starts_with(crate::extent::NAME))
    }

    /// Returns how this mapping's present memory is backed.
    pub fn backing(&self) -> BackingBytes {
        let mut bytes = BackingBytes {
            thp: self.anon_huge,
            shmem_pmd: self.shmem_pmd,
            file_pmd: self.file_pmd,
            ..BackingBytes::default()
        };
        bytes.base = self.rss.saturating_sub(self.anon_huge + self.shmem_pmd + self.file_pmd);
        match self.kernel_page_size {
            PageSize::HUGE_1G => bytes.hugetlb_1g = self.hugetlb,
            PageSize::HUGE_2M => bytes.hugetlb_2m = self.hugetlb,
            _ => bytes.hugetlb_other = self.hugetlb,
        }
        bytes
    }
}

/// Returns how the present memory of all `mappings` is backed.
pub fn backing<'a>(mappings: impl IntoIterator<Item = &'a Mapping>) -> BackingBytes {
    let mut sum = BackingBytes::default();
    for mapping in mappings {
        sum += mapping.backing();
    }
    sum
}

/// Returns the mappings of `pid`. Needs the right to trace the process
/// (`PTRACE_MODE_READ_FSCREDS`): EACCES without it. For a process that has gone the error is one
/// for which [`KernelError::is_gone`] holds. A zombie has no mappings.
pub fn read_smaps(root: &KernelRoot, pid: Pid) -> Result<Vec<Mapping>, KernelError> {
    read_file(root, &format!("proc/{pid}/smaps"))
}

/// Returns the mappings of the calling process.
pub fn read_own_smaps(root: &KernelRoot) -> Result<Vec<Mapping>, KernelError> {
    read_file(root, "proc/self/smaps")
}

fn read_file(root: &KernelRoot, relative: &str) -> Result<Vec<Mapping>, KernelError> {
    let mut parser = Parser { mappings: Vec::new(), wrong: None };
    root.each_line(relative, |number, line| parser.take(number, line))?;
    let at = |(line, what)| KernelError::Parse { path: root.path(relative), line, what };
    parser.end().map_err(at)
}

/// Line number (from 1), and the text that was expected there.
type Complaint = (usize, String);

/// Parser that takes line after line.
struct Parser {
    mappings: Vec<Mapping>,
    wrong: Option<Complaint>,
}

impl Parser {
    /// Takes one line; returns true to go on.
    fn take(&mut self, number: usize, line: &str) -> bool {
        self.wrong = self.line(line).err().map(|what| (number, format!("expected {what}, found '{line}'")));
        self.wrong.is_none()
    }

    fn end(self) -> Result<Vec<Mapping>, Complaint> {
        match self.wrong {
            None => Ok(self.mappings),
            Some(complaint) => Err(complaint),
        }
    }

    /// Parses one line. The error says what was expected instead.
    fn line(&mut self, line: &str) -> Result<(), String> {
        let (first, rest) = line.split_once(' ').unwrap_or((line, ""));
        let Some(key) = first.strip_suffix(':') else {
            if self.mappings.len() == MOST_MAPPINGS {
                return Err(format!("{MOST_MAPPINGS} mappings at most"));
            }
            self.mappings.push(parse_header(line).ok_or("a mapping")?);
            return Ok(());
        };
        let mapping = self.mappings.last_mut().ok_or("a mapping before its fields")?;
        // Unknown fields come with new kernels, and are skipped.
        let kib = || {
            let kib = rest.trim().strip_suffix(" kB").and_then(|value| value.parse().ok());
            kib.map(Bytes::kib).ok_or("a value in kB")
        };
        match key {
            "KernelPageSize" => {
                mapping.kernel_page_size = PageSize::new(kib()?.0).ok_or("a page size")?;
            }
            "Rss" => mapping.rss = kib()?,
            "Pss" => mapping.pss = kib()?,
            "Referenced" => mapping.referenced = kib()?,
            "Shared_Clean" | "Shared_Dirty" => mapping.shared += kib()?,
            "KSM" => mapping.ksm = kib()?,
            "Anonymous" => mapping.anonymous = kib()?,
            "AnonHugePages" => mapping.anon_huge = kib()?,
            "ShmemPmdMapped" => mapping.shmem_pmd = kib()?,
            "FilePmdMapped" => mapping.file_pmd = kib()?,
            "Shared_Hugetlb" => {
                mapping.hugetlb_shared = kib()?;
                mapping.hugetlb += mapping.hugetlb_shared;
            }
            "Private_Hugetlb" => mapping.hugetlb += kib()?,
            "Swap" => mapping.swap = kib()?,
            "VmFlags" => mapping.vm_flags = rest.trim().to_string(),
            "THPeligible" => mapping.thp_eligible = rest.trim() != "0",
            _ => {}
        }
        Ok(())
    }
}

/// Parses `7f00-7f10 rw-p 00000000 00:00 0    [heap]`.
fn parse_header(line: &str) -> Option<Mapping> {
    let mut rest = line;
    let mut word = || {
        rest = rest.trim_start();
        let (word, after) = rest.split_at(rest.find(' ').unwrap_or(rest.len()));
        rest = after;
        word
    };
    let (start, end) = word().split_once('-')?;
    let range = VirtRange::new(u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?)?;
    let permissions = word().to_string();
    let hexadecimal = |text: &str| u64::from_str_radix(text, 16).ok();
    let offset = hexadecimal(word())?;
    let (major, minor) = word().split_once(':')?;
    let device = (u32::try_from(hexadecimal(major)?).ok()?, u32::try_from(hexadecimal(minor)?).ok()?);
    let inode = word().parse().ok()?;
    Some(Mapping { offset, device, inode, ..Mapping::untouched(range, &permissions, rest.trim_start()) })
}

#[cfg(test)]
mod tests;
