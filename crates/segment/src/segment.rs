//! A segment that is open: its pages mapped, its states stored.

mod handed;
mod shape;

pub(crate) use handed::Offered;
pub(crate) use shape::new_header;

use crate::error::{SegmentError, during};
use crate::files;
use crate::header::{self, CLEAN, Header, Layout, PAGE_STATES, SLOT, SLOT_WORDS, data_start};
use crate::name::Name;
use megapage_kernel::directory::{Directory, can_shrink, memory_file, reopen};
use megapage_kernel::hugetlb::{PoolScope, counts};
use megapage_kernel::{KernelRoot, Populate, SharedMapping, require_base_pages};
use megapage_units::{Bytes, HUGE_1G, PageSize};
use shape::{address_space, header_of};
use std::ffi::OsStr;
use std::fs::File;
use std::hash::{BuildHasher, RandomState};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

/// Result of opening a segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Opened {
    /// Pages that the kernel has just given, all zeros.
    pub fresh_pages: u64,
    /// Pages of an earlier opening that may hold old bytes.
    pub dirty_pages: u64,
    /// Pages of an earlier opening that were never handed out: zeros.
    pub clean_pages: u64,
    /// Bytes of leftovers that were removed first.
    pub removed: Bytes,
    /// True if its address is the same as the last time, or as in its owner.
    pub same_address: bool,
}

impl Opened {
    /// Returns the warning about old bytes; `None` if there are none.
    pub fn warning(&self, page_size: PageSize) -> Option<String> {
        (self.dirty_pages > 0).then(|| {
            format!(
                "{} pages of {page_size} are reused and hold what was in them: their owner's earlier runs",
                self.dirty_pages
            )
        })
    }
}

/// State of a page: it may hold old bytes or not.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PageState {
    /// Never handed out: zeros.
    Clean,
    /// It may hold anything.
    Dirty,
}

/// Source of the pages.
#[derive(Debug)]
pub(crate) enum Place {
    /// Files in the directory of the segment.
    Named(Directory),
    /// Files that lose their names as soon as they are made in this directory, that of the pool.
    Unlinked(Directory),
    /// A memory file.
    Memory,
}

/// Role of this process for a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// The one process that allocates, grows and removes.
    Owner,
    /// A process that has mapped the segment, will own it, and writes nothing to it yet.
    Successor,
    /// A process that maps another process's segment, at the same address.
    Sharer,
}

/// Parts from which a segment is made or opened.
#[derive(Debug)]
pub(crate) struct Parts {
    /// A directory is held open for the owner's lock on it, too.
    pub place: Place,
    /// The file of the first page, if there was one before. It is held open for the lock of the
    /// processes that map it.
    pub _first: Option<File>,
    /// Its path, for messages.
    pub path: PathBuf,
    /// True if its pages are hugetlb pages.
    pub hugetlb: bool,
    /// The role of this process for it.
    pub role: Role,
    /// Memory of leftovers that were removed.
    pub removed: Bytes,
}

impl Parts {
    /// Returns the parts of a new segment.
    pub fn of(place: Place, path: PathBuf, hugetlb: bool, role: Role) -> Parts {
        Parts { place, _first: None, path, hugetlb, role, removed: Bytes::ZERO }
    }
}

/// Memory with a name. Dropping it unmaps it and releases its lock; its files stay, unless they
/// were unlinked.
///
/// Its memory is shared: a child of fork(2) has it, too, and keeps the lock while it lives, or
/// until it executes a program. Threads may use it at the same time; all accesses are atomic words.
#[derive(Debug)]
pub struct Segment {
    mapping: SharedMapping,
    book: Mutex<Book>,
    parts: Parts,
    opened: Opened,
    /// Same as in the header; these three do not change.
    name: Name,
    page_size: PageSize,
    most_pages: u64,
}

/// The header as it stands in the segment, and the file of a single-file layout.
#[derive(Debug)]
struct Book {
    header: Header,
    slot: usize,
    file: Option<File>,
}

/// Error of MADV_POPULATE_WRITE for a page at which an access would raise SIGBUS.
const EFAULT: i32 = 14;

/// Counts the files that lose their names at once, so that no two of a process have the same name.
static UNLINKED: AtomicUsize = AtomicUsize::new(0);

impl Segment {
    /// Makes a segment in a memory file: on hugetlb pages of this size, or with `hugetlb` false on
    /// base pages in units of that size. It lives as long as a process has the file open
    /// ([`Segment::descriptor`]).
    pub fn in_memory(
        name: Name,
        page_size: PageSize,
        hugetlb: bool,
        size: Bytes,
        most: Bytes,
    ) -> Result<Segment, SegmentError> {
        check_pages(page_size)?;
        let path = PathBuf::from(format!("memory file {name}"));
        let file = memory_file(name.as_str(), hugetlb.then_some(page_size))
            .map_err(during(&path, "making the memory file"))?;
        files::lock(&file, &path)?;
        let parts = Parts::of(Place::Memory, path, hugetlb, Role::Owner);
        let header = new_header(name, page_size, Layout::SingleFile, size, most, None, 0o600)?;
        Segment::make(header, Some(file), parts)
    }

    /// Opens the segment in a memory file, as its owner. Fails while another process owns it. With
    /// `share`, maps it at its owner's address.
    pub fn of_memory_file(file: &File, share: bool) -> Result<Segment, SegmentError> {
        require_base_pages(&KernelRoot::live())?;
        let path = PathBuf::from("memory file");
        if can_shrink(file) {
            return Err(SegmentError::Damaged {
                path,
                what: "it can be truncated while it is in use (no F_SEAL_SHRINK)".into(),
            });
        }
        let file = reopen(file).map_err(during(&path, "opening it again"))?;
        if !share {
            files::lock(&file, &path)?;
        }
        let (header, slot, huge) = header_of(&file, &path)?;
        let role = if share { Role::Sharer } else { Role::Owner };
        let parts = Parts::of(Place::Memory, path, huge.is_some(), role);
        Segment::reuse(header, slot, Some(file), parts)
    }

    /// Makes a segment with fresh pages.
    pub(crate) fn make(header: Header, file: Option<File>, parts: Parts) -> Result<Segment, SegmentError> {
        let bytes = address_space(&header)?;
        let mapping = reserve(bytes).map_err(during(&parts.path, "reserving addresses"))?;
        let pages = header.pages;
        let header = Header { pages: 0, address: mapping.address() as u64, ..header };
        let segment = Segment {
            mapping,
            opened: Opened { fresh_pages: pages, removed: parts.removed, ..Opened::default() },
            name: header.name.clone(),
            page_size: header.page_size,
            most_pages: header.most_pages,
            book: Mutex::new(Book { header, slot: 1, file }),
            parts,
        };
        segment.add(pages)?;
        Ok(segment)
    }

    /// Maps the pages of a segment that was found whole, without touching those that its files
    /// have. The time does not depend on their number, except with [`Layout::FilePerPage`]: there
    /// each file is opened and mapped.
    pub(crate) fn reuse(
        header: Header,
        slot: usize,
        file: Option<File>,
        parts: Parts,
    ) -> Result<Segment, SegmentError> {
        let bytes = address_space(&header)?;
        let path = &parts.path;
        // Aligned like all segments, so that an offset in it is aligned like its address.
        let former = usize::try_from(header.address).unwrap_or(0);
        let former = if former.is_multiple_of(HUGE_1G) { former } else { 0 };
        let mapping = match SharedMapping::reserve_at(former, bytes) {
            Ok(mapping) => mapping,
            Err(source) if parts.role == Role::Sharer => {
                return Err(SegmentError::Address { path: path.clone(), address: header.address, source });
            }
            Err(_) => reserve(bytes).map_err(during(path, "reserving addresses"))?,
        };
        let page = header.page_size.bytes().0 as usize;
        let mapped = match (&file, &parts.place) {
            (Some(file), _) => {
                mapping.append(file, 0, header.pages as usize * page, header.node, Populate::Missing)
            }
            (None, Place::Named(directory)) => {
                let open =
                    |number: usize| directory.open_file(&files::file_name(header.layout, number as u64));
                mapping.append_pieces(header.pages as usize, page, header.node, Populate::Missing, open)
            }
            (None, _) => unreachable!("a segment without a directory is in one file"),
        };
        mapped.map_err(|error| {
            let held = match (&file, &parts.place) {
                (Some(file), _) => file.metadata().map_or(0, |found| found.blocks() * files::STAT_BLOCK),
                (None, Place::Named(directory)) => files::held(directory).0,
                (None, _) => 0,
            };
            let lacks = header.pages.saturating_sub(held / page as u64);
            let error = during(path, "mapping its pages")(error);
            explain(error, &header.name, header.page_size, parts.hugetlb, lacks)
        })?;
        let same_address = mapping.address() == former;
        let mut segment = Segment {
            opened: Opened { removed: parts.removed, same_address, ..Opened::default() },
            name: header.name.clone(),
            page_size: header.page_size,
            most_pages: header.most_pages,
            mapping,
            book: Mutex::new(Book { header, slot, file }),
            parts,
        };
        segment.opened.clean_pages = segment.clean_pages();
        segment.opened.dirty_pages = segment.pages() - segment.opened.clean_pages;
        if segment.is_owner() {
            segment.begin();
        }
        Ok(segment)
    }

    /// Notes the owner's address from now on, and one more opening.
    fn begin(&self) {
        let address = self.mapping.address() as u64;
        let mut book = self.book();
        let next = Header { address, openings: book.header.openings.wrapping_add(1), ..book.header.clone() };
        self.write_header(&mut book, next);
    }

    /// Returns its name.
    pub fn name(&self) -> &Name {
        &self.name
    }

    /// Returns its path, as messages name it.
    pub fn path(&self) -> &Path {
        &self.parts.path
    }

    /// Returns the size of its pages.
    pub fn page_size(&self) -> PageSize {
        self.page_size
    }

    /// Returns true if its pages come from a hugetlb pool. Elsewhere it is on base pages, in units
    /// of [`Segment::page_size`].
    pub fn is_on_hugetlb(&self) -> bool {
        self.parts.hugetlb
    }

    /// Returns true if this is its owner, not a process that maps another's segment.
    pub fn is_owner(&self) -> bool {
        self.parts.role == Role::Owner
    }

    /// Returns the result of opening it.
    pub fn opened(&self) -> Opened {
        self.opened
    }

    /// Returns the address of its first byte in this process.
    pub fn address(&self) -> usize {
        self.mapping.address()
    }

    /// Returns the number of pages that it has here.
    pub fn pages(&self) -> u64 {
        self.mapping.ready() as u64 / self.page_size.bytes().0
    }

    /// Returns the bytes of its pages, including those that it keeps for itself.
    pub fn size(&self) -> Bytes {
        Bytes(self.mapping.ready() as u64)
    }

    /// Returns the most that it may grow to.
    pub fn most(&self) -> Bytes {
        Bytes(self.most_pages * self.page_size.bytes().0)
    }

    /// Returns the number of times that owners have opened it again since it was made.
    pub fn openings(&self) -> u64 {
        self.book().header.openings
    }

    /// Returns a number that no earlier owner of this segment had.
    pub(crate) fn epoch(&self) -> u64 {
        self.openings() + 1
    }

    /// Returns the file of a single-file layout, to be handed to another process; `None` if each
    /// page has a separate file.
    pub fn descriptor(&self) -> Option<std::io::Result<File>> {
        self.book().file.as_ref().map(File::try_clone)
    }

    /// Returns the NUMA node of a page, as the kernel reports it. Fails for a page that is not
    /// there.
    pub fn node_of(&self, page: u64) -> std::io::Result<u32> {
        self.mapping.node_of(page.saturating_mul(self.page_size.bytes().0))
    }

    /// Returns the state of a page. A page that is not there counts as dirty.
    pub fn page_state(&self, page: u64) -> PageState {
        let word = self.raw(PAGE_STATES + (page & !7), 1).filter(|_| page < self.most_pages);
        match word.map(|word| word[0].load(Ordering::Acquire).to_le_bytes()[(page % 8) as usize]) {
            Some(CLEAN) => PageState::Clean,
            _ => PageState::Dirty,
        }
    }

    /// Returns the number of its clean pages. It reads eight states at a time: a TiB has half a
    /// million.
    fn clean_pages(&self) -> u64 {
        const ALL_CLEAN: u64 = u64::from_ne_bytes([CLEAN; 8]);
        let pages = self.pages() as usize;
        let words = self.raw(PAGE_STATES, pages.div_ceil(8)).unwrap_or_default();
        let of = |(at, word): (usize, &AtomicU64)| match word.load(Ordering::Acquire) {
            0 => 0,
            ALL_CLEAN if at * 8 + 8 <= pages => 8,
            states => {
                states.to_le_bytes().iter().take(pages - at * 8).filter(|state| **state == CLEAN).count()
            }
        };
        words.iter().enumerate().map(of).sum::<usize>() as u64
    }

    /// Fills the page tables for all its pages, so that no access takes a fault. It takes about 0.3
    /// ms for each GiB on pages of 2 MiB. Fresh segments have them filled already; reused ones
    /// do not.
    pub fn populate(&self) -> Result<(), SegmentError> {
        self.mapping.populate().map_err(during(&self.parts.path, "filling the page tables"))
    }

    /// Returns the offset of the first byte that is not the segment's own.
    pub fn data_start(&self) -> u64 {
        data_start(self.most_pages)
    }

    /// Returns `count` words from the byte `offset` of the segment on, to read and write. Their
    /// pages count as dirty from now on. Returns `None` unless `offset` is a multiple of 8 behind
    /// [`Segment::data_start`], and all words are there.
    pub fn words(&self, offset: u64, count: usize) -> Option<&[AtomicU64]> {
        let words = self.raw(offset, count).filter(|_| offset >= self.data_start())?;
        self.mark_dirty(offset, count as u64 * 8);
        Some(words)
    }

    /// Grows to at least `size` with fresh pages. On an error its size is unchanged.
    pub fn grow(&self, size: Bytes) -> Result<(), SegmentError> {
        if !self.is_owner() {
            let what = format!("{}: only its owner makes a segment grow", self.parts.path.display());
            return Err(SegmentError::Request(what));
        }
        if size > self.most() {
            return Err(SegmentError::Full { name: self.name.clone(), most: self.most(), asked: size });
        }
        let pages = size.0.div_ceil(self.page_size.bytes().0);
        self.add(pages.saturating_sub(self.pages()))
    }

    /// Grows in the same way, as a part of opening.
    pub(crate) fn grow_at_opening(&mut self, size: Bytes) -> Result<(), SegmentError> {
        let before = self.pages();
        if size > self.size() {
            self.grow(size)?;
        }
        self.opened.fresh_pages += self.pages() - before;
        Ok(())
    }

    /// Returns words that may be the segment's own.
    pub(crate) fn raw(&self, offset: u64, count: usize) -> Option<&[AtomicU64]> {
        self.mapping.words(offset, count)
    }

    /// Notes that the pages of these bytes may hold anything from now on.
    pub(crate) fn mark_dirty(&self, offset: u64, bytes: u64) {
        let page = self.page_size.bytes().0;
        let end = offset.saturating_add(bytes.max(1)).div_ceil(page).min(self.most_pages);
        for number in offset / page..end {
            if self.page_state(number) == PageState::Clean {
                self.set_state(number, 0);
            }
        }
    }

    fn set_state(&self, page: u64, state: u8) {
        let Some(word) = self.raw(PAGE_STATES + (page & !7), 1) else { return };
        let shift = page % 8 * 8;
        word[0].fetch_and(!(0xff << shift), Ordering::AcqRel);
        word[0].fetch_or(u64::from(state) << shift, Ordering::AcqRel);
    }

    fn book(&self) -> std::sync::MutexGuard<'_, Book> {
        // The contents of the book are always whole: they are replaced in one step.
        self.book.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    /// Adds `count` fresh pages: files first, then the states, then the header. A process that
    /// finds the segment after a kill sees either all of them or none.
    fn add(&self, count: u64) -> Result<(), SegmentError> {
        if count == 0 {
            return Ok(());
        }
        let mut book = self.book();
        let before = self.pages();
        let result = match book.header.layout {
            Layout::SingleFile => self.lengthen(&mut book, before, count),
            Layout::FilePerPage => self.add_files(&book, before, count),
        };
        if let Err(error) = result {
            self.drop_files(&book, before, count);
            return Err(explain(error, &self.name, self.page_size, self.parts.hugetlb, count));
        }
        for number in before..before + count {
            self.set_state(number, CLEAN);
        }
        let next = Header { pages: before + count, ..book.header.clone() };
        self.write_header(&mut book, next);
        Ok(())
    }

    fn lengthen(&self, book: &mut Book, before: u64, count: u64) -> Result<(), SegmentError> {
        let page = self.page_size.bytes().0;
        if book.file.is_none() {
            book.file = Some(self.new_file(&book.header, 0)?);
        }
        let Some(file) = &book.file else { return Ok(()) };
        let path = &self.parts.path;
        file.set_len((before + count) * page).map_err(during(path, "making its file longer"))?;
        let (from, length) = (before * page, (count * page) as usize);
        let mapped = self.mapping.append(file, from, length, book.header.node, Populate::All);
        mapped.map_err(during(path, "taking its pages"))
    }

    fn add_files(&self, book: &Book, before: u64, count: u64) -> Result<(), SegmentError> {
        let page = self.page_size.bytes().0;
        let mut refused = None;
        let make = |number: usize| {
            let file = self.new_file(&book.header, before + number as u64).map_err(|error| {
                refused = Some(error);
                std::io::Error::from(std::io::ErrorKind::Other)
            })?;
            file.set_len(page)?;
            Ok(file)
        };
        let (count, length) = (count as usize, page as usize);
        let mapped = self.mapping.append_pieces(count, length, book.header.node, Populate::All, make);
        mapped.map_err(|error| refused.unwrap_or_else(|| during(&self.parts.path, "taking its pages")(error)))
    }

    fn new_file(&self, header: &Header, number: u64) -> Result<File, SegmentError> {
        let failed = during(&self.parts.path, "making a file");
        match &self.parts.place {
            Place::Named(directory) => {
                let file = directory
                    .create_file(files::file_name(header.layout, number), header.mode)
                    .map_err(failed)?;
                if number == 0 {
                    // Held while the file is open or mapped here; no other process knows of it yet.
                    files::lock_shared(&file, &self.parts.path)?;
                }
                Ok(file)
            }
            Place::Unlinked(directory) => {
                let count = UNLINKED.fetch_add(1, Ordering::Relaxed);
                let name = format!(".new.{}.{count}", std::process::id());
                let file = directory.create_file(&name, header.mode).map_err(failed)?;
                // The name is removed before the file has a length: a kill in between leaves an
                // empty file.
                let removed = directory.remove_file(OsStr::new(&name));
                removed.map_err(during(directory.path().join(name), "removing the name"))?;
                Ok(file)
            }
            Place::Memory => Err(failed(std::io::ErrorKind::Unsupported.into())),
        }
    }

    /// Releases the memory that a failed growth has taken.
    fn drop_files(&self, book: &Book, before: u64, count: u64) {
        match (&book.file, &self.parts.place) {
            // A memory file cannot shrink; the memory behind its pages is taken at the next growth.
            (Some(file), _) => drop(file.set_len(before * self.page_size.bytes().0)),
            (None, Place::Named(directory)) => {
                for number in before..before + count {
                    let name = files::file_name(book.header.layout, number);
                    let _ = directory.remove_file(OsStr::new(&name));
                }
            }
            (None, _) => {}
        }
    }

    /// Writes the next header into the slot that is not in use, its checksum last.
    fn write_header(&self, book: &mut Book, next: Header) {
        let next = Header { generation: book.header.generation.wrapping_add(1), ..next };
        let slot = 1 - book.slot;
        let Some(words) = self.raw(slot as u64 * SLOT, SLOT_WORDS) else { return };
        let encoded = next.encode();
        words[SLOT_WORDS - 1].store(0, Ordering::Release);
        for (word, value) in words.iter().zip(encoded) {
            word.store(value, Ordering::Release);
        }
        *book = Book { header: next, slot, file: book.file.take() };
    }
}

/// Turns an error into a shortage of hugetlb pages, if that is its cause. At most `needed` pages
/// were missing.
fn explain(error: SegmentError, name: &Name, size: PageSize, hugetlb: bool, needed: u64) -> SegmentError {
    let is_short = matches!(&error, SegmentError::System { source, .. }
        if source.kind() == std::io::ErrorKind::OutOfMemory || source.raw_os_error() == Some(EFAULT));
    if !is_short || !hugetlb {
        return error;
    }
    match counts(&KernelRoot::live(), size, PoolScope::Machine) {
        Ok(pool) if pool.available().unwrap_or(0) < needed => {
            let available = pool.available().unwrap_or(0);
            SegmentError::Short { name: name.clone(), size, needed, available }
        }
        // The pool has enough: it is a control group's limit, or a full mount. Only the kernel's
        // answer is known.
        _ => error,
    }
}

/// Refuses page sizes of which no segment is made here.
pub(crate) fn check_pages(size: PageSize) -> Result<(), SegmentError> {
    require_base_pages(&KernelRoot::live())?;
    match header::is_segment_page(size) {
        true => Ok(()),
        false => Err(SegmentError::Request(format!("segments have pages of 2m or 1g, not {size}"))),
    }
}

/// Reserves addresses for a segment, aligned to 1 GiB. There, processes that map one file share
/// page-table pages (huge_pmd_share of the kernel): a page that one has touched is no fault for the
/// other. An address near the kernel's own choices is least likely to be free in another process,
/// too. So it is chosen at random from a range in which nothing else is placed.
fn reserve(bytes: usize) -> std::io::Result<SharedMapping> {
    const FROM: usize = 32 << 40;
    const SLOTS: usize = 32 << 10;
    const TRIES: u8 = 8;
    let slot = || RandomState::new().hash_one(0u8) as usize % SLOTS;
    let tried = (0..TRIES).find_map(|_| SharedMapping::reserve_at(FROM + slot() * HUGE_1G, bytes).ok());
    tried.map_or_else(|| SharedMapping::reserve(bytes, HUGE_1G), Ok)
}
