//! Priming: it brings a file's own pages into huge folios. The kernel then maps them by 2 MiB
//! entries in every process that maps the file from then on. Nothing is remapped: addresses, names
//! and sharing stay as they are.

mod data;

use crate::layout::{FileRange, HUGE, primable, total};
use crate::{Binary, Placement, RemapError, User, read_binary, users};
use megapage_kernel::ability::{EXT4_LARGE_FOLIOS, FILE_COLLAPSE, POPULATE_WRITE, THP, XFS_LARGE_FOLIOS};
use megapage_kernel::file_cache::{self, FileView, Holes};
use megapage_kernel::hugetlb::PoolScope;
use megapage_kernel::meminfo;
use megapage_kernel::trusted::open_regular;
use megapage_kernel::{KernelRoot, buddyinfo, effective_uid, mounts, reclaim};
use megapage_units::shown::shell_path;
use megapage_units::{BASE_PAGE, Bytes, PageSize};
use serde::Serialize;
use std::fs::File;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Outcome of priming one file.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The file.
    #[serde(serialize_with = "megapage_kernel::json_path::escaped")]
    pub file: PathBuf,
    /// True if nothing was done, and this is what would be done.
    pub dry_run: bool,
    /// Bytes of the file that 2 MiB entries could map: whole blocks of its read-only segments that
    /// hold data.
    pub possible_bytes: u64,
    /// Bytes of them that lay in huge folios before; `None` if the kernel does not report it, since
    /// the file is another user's.
    pub before_bytes: Option<u64>,
    /// Bytes of them that lie in huge folios afterwards; `None` in a dry run.
    pub folio_bytes: Option<u64>,
    /// Bytes of them that a later mapping has by 2 MiB entries, at an address of the kernel's
    /// choice. The page table shows it; `None` in a dry run.
    pub obtained_bytes: Option<u64>,
    /// Reason that not all were obtained.
    pub missing: Option<String>,
    /// Processes that have the file mapped: they keep the pages that they had.
    pub users: Vec<User>,
    /// The same, as shell lines.
    pub commands: Vec<String>,
}

impl Outcome {
    /// Returns true if a mapping has every block by a 2 MiB entry; for a dry run, always.
    pub fn is_complete(&self) -> bool {
        self.dry_run || (self.obtained_bytes == Some(self.possible_bytes) && self.missing.is_none())
    }
}

/// Outcome of dropping the cached pages of one file.
#[derive(Clone, Debug, Serialize)]
pub struct Undone {
    /// The file.
    #[serde(serialize_with = "megapage_kernel::json_path::escaped")]
    pub file: PathBuf,
    /// True if nothing was done, and this is what would be done.
    pub dry_run: bool,
    /// Bytes that lay in huge folios before; `None` if the kernel does not report it.
    pub before_bytes: Option<u64>,
    /// Bytes that still lie in huge folios: pages that a process has mapped stay until it unmaps
    /// them or ends.
    pub left_bytes: Option<u64>,
    /// Processes that have the file mapped.
    pub users: Vec<User>,
    /// The same, as shell lines.
    pub commands: Vec<String>,
}

/// File, and its blocks that 2 MiB entries could map.
pub(crate) struct Target {
    path: PathBuf,
    file: File,
    ranges: Vec<FileRange>,
    /// True if the file has more blocks than memory could keep, or parts than are looked at.
    cut: bool,
    /// True if the kernel reports which pages are in memory.
    reports_states: bool,
}

impl Target {
    pub(crate) fn open(root: &KernelRoot, path: &Path, binary: &Binary) -> Result<Target, RemapError> {
        Target::of(root, path, |_| primable(binary))
    }

    /// Returns the target of a file whose bytes are data: every whole block of 2 MiB. The kernel
    /// reads no block beyond the end as one folio.
    fn of_data(root: &KernelRoot, path: &Path) -> Result<Target, RemapError> {
        let whole = |length: u64| FileRange { offset: 0, length: length / HUGE * HUGE };
        Target::of(root, path, |length| {
            Some(whole(length)).filter(|range| range.length > 0).into_iter().collect()
        })
    }

    fn of(
        root: &KernelRoot,
        path: &Path,
        ranges: impl FnOnce(u64) -> Vec<FileRange>,
    ) -> Result<Target, RemapError> {
        let io = RemapError::io(path);
        let file = open_regular(path).map_err(&io)?;
        let metadata = file.metadata().map_err(&io)?;
        let user = effective_uid();
        let reports_states = user == 0 || user == metadata.uid();
        let holes = file_cache::holes_of(&file).map_err(&io)?;
        if holes == Holes::Hidden {
            return Err(RemapError::unfit(
                path,
                "its file system (hugetlbfs or ramfs) has no huge folios to give",
            ));
        }
        let least = if holes == Holes::Filled { HUGE - BASE_PAGE as u64 + 1 } else { HUGE / 2 };
        let room = meminfo(root)?.total.map_or(u64::MAX, |total| total.0);
        let data = data::blocks(&ranges(metadata.len()), least, room, |range| {
            file_cache::data_in(&file, range.offset, range.offset + range.length)
        });
        let (ranges, cut) = data.map_err(&io)?;
        Ok(Target { path: path.into(), file, ranges, cut, reports_states })
    }

    pub(crate) fn possible(&self) -> u64 {
        total(&self.ranges)
    }

    /// Returns the bytes that lie in huge folios; `None` if the kernel does not report it. Reads
    /// nothing from the disk.
    pub(crate) fn huge(&self, root: &KernelRoot) -> Result<Option<u64>, RemapError> {
        if !self.reports_states {
            return Ok(None);
        }
        let states = self.states(root)?;
        Ok(Some(HUGE * states.iter().filter(|(_, state)| *state == State::Huge).count() as u64))
    }

    /// Returns the state of each block.
    fn states(&self, root: &KernelRoot) -> Result<Vec<(u64, State)>, RemapError> {
        let io = RemapError::io(&self.path);
        let blocks: Vec<u64> = self.ranges.iter().flat_map(|range| range.blocks()).collect();
        let mut states = Vec::new();
        let can_populate = POPULATE_WRITE.is_there(root);
        for blocks in blocks.chunks(VIEWS_AT_ONCE) {
            let views = blocks.iter().map(|&at| FileView::map(&self.file, at, HUGE));
            let views = views.collect::<Result<Vec<_>, _>>().map_err(&io)?;
            let mut resident = Vec::new();
            for view in &views {
                let pages = view.resident().map_err(&io)?;
                if can_populate && pages.iter().all(|&page| page) {
                    // Mapping one page of a huge folio maps it all.
                    view.populate(0, BASE_PAGE as u64).map_err(&io)?;
                }
                resident.push(pages.iter().filter(|&&page| page).count());
            }
            let huge = file_cache::mapped_huge(root, &views)?;
            for ((&at, huge), resident) in blocks.iter().zip(huge).zip(resident) {
                let state = match resident {
                    _ if huge == Bytes(HUGE) => State::Huge,
                    0 => State::Absent,
                    _ => State::Small,
                };
                states.push((at, state));
            }
        }
        Ok(states)
    }
}

/// Most blocks that are mapped at once for a look at them: three mappings each, of the 65,530 that
/// a process may have.
const VIEWS_AT_ONCE: usize = 256;

/// State in memory of a block of 2 MiB of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// In one folio, which a 2 MiB entry maps.
    Huge,
    /// At least in part, in smaller folios.
    Small,
    /// Not at all.
    Absent,
}

/// Returns true if the file will be placed at a multiple of 2 MiB. For a library that promises
/// nothing, the kernel's present choice decides: on many file systems it prefers such addresses for
/// large mappings (Linux 6.7).
pub fn is_placed_huge(path: &Path, binary: &Binary) -> Result<bool, RemapError> {
    if binary.base_alignment() >= HUGE {
        return Ok(true);
    }
    if binary.placement != Placement::Library {
        return Ok(false);
    }
    let file = open_regular(path).map_err(RemapError::io(path))?;
    is_mapped_aligned(&file, binary.span().max(1)).map_err(RemapError::io(path))
}

/// Returns true if the kernel puts a mapping of `length` bytes from the start of `file` at a
/// multiple of 2 MiB.
fn is_mapped_aligned(file: &File, length: u64) -> io::Result<bool> {
    // A single such address could be chance: one in 512.
    for _ in 0..3 {
        if !file_cache::chosen_address(file, length)?.is_multiple_of(HUGE) {
            return Ok(false);
        }
    }
    Ok(true)
}

fn open(root: &KernelRoot, path: &Path) -> Result<(Binary, Target), RemapError> {
    let binary = read_binary(path)?;
    let target = Target::open(root, path, &binary)?;
    Ok((binary, target))
}

/// Primes `path`, whatever it holds: the code and constants of a 64-bit ELF file ([`prime`]), or
/// all of any other file.
pub fn prime_any(root: &KernelRoot, path: &Path, dry_run: bool) -> Result<Outcome, RemapError> {
    match read_binary(path) {
        Ok(_) => prime(root, path, dry_run),
        Err(RemapError::Unfit { .. }) => {
            let target = Target::of_data(root, path)?;
            let length = target.file.metadata().map_err(RemapError::io(path))?.len();
            if target.ranges.is_empty() {
                let why = match length < HUGE {
                    true => "it is smaller than a huge page of 2 MiB",
                    false => "none of its blocks of 2 MiB holds enough data: it is sparse",
                };
                return Err(RemapError::unfit(path, why));
            }
            // The place does not depend on more than that.
            let aligned =
                is_mapped_aligned(&target.file, length.min(1 << 30)).map_err(RemapError::io(path))?;
            prime_target(root, path, &target, aligned, dry_run)
        }
        Err(error) => Err(error),
    }
}

/// Primes `path`, and looks at the result. If the kernel can, it collapses pages in small folios in
/// place. The remaining ones are dropped, and read in again in folios of 2 MiB. Blocks that lie in
/// huge folios already are not touched, so that it can be repeated against eviction.
///
/// It takes the time of reading the file from the disk, and needs no privilege but to read the
/// file.
pub fn prime(root: &KernelRoot, path: &Path, dry_run: bool) -> Result<Outcome, RemapError> {
    let (binary, target) = open(root, path)?;
    let quoted = shell_path(path);
    if target.ranges.is_empty() {
        return Err(RemapError::unfit(
            path,
            format!("no part of it can be mapped by huge pages (see megapage remap check {quoted})"),
        ));
    }
    if !is_placed_huge(path, &binary)? {
        return Err(RemapError::unfit(
            path,
            "its segments are not aligned to 2 MiB: use megapage run --text thp, which moves its code when it starts",
        ));
    }
    prime_target(root, path, &target, true, dry_run)
}

/// Primes the blocks of `target`. `aligned` is true if mappings of the file lie at multiples of
/// 2 MiB.
fn prime_target(
    root: &KernelRoot,
    path: &Path,
    target: &Target,
    aligned: bool,
    dry_run: bool,
) -> Result<Outcome, RemapError> {
    // No file is refused by its file system beforehand: a distribution may have added large folios
    // to it early.
    if !POPULATE_WRITE.is_there(root) {
        return Err(RemapError::unfit(path, no_populate()));
    }
    let before = if target.reports_states { Some(target.states(root)?) } else { None };
    let todo = before.as_ref().map_or_else(|| target.ranges.clone(), |states| not_huge(states));
    let mut outcome = Outcome {
        file: path.to_path_buf(),
        dry_run,
        possible_bytes: target.possible(),
        before_bytes: before.as_ref().map(|_| target.possible() - total(&todo)),
        folio_bytes: None,
        obtained_bytes: None,
        missing: None,
        users: Vec::new(),
        commands: todo.iter().map(|range| command(path, range)).collect(),
    };
    if dry_run {
        outcome.users = users::users(root, &target.file)?;
        return Ok(outcome);
    }
    let (mut todo, mut held) = (todo, 0);
    let mut obtained = outcome.before_bytes.unwrap_or(0);
    if FILE_COLLAPSE.is_there(root)
        && let Some(before) = &before
        && before.iter().any(|(_, state)| *state == State::Small)
    {
        collapse(target, before)?;
        todo = not_huge(&target.states(root)?);
        obtained = target.possible() - total(&todo);
    }
    for _ in 0..MOST_PASSES {
        if todo.is_empty() {
            break;
        }
        held = read_in(root, target, &todo)?;
        todo = not_huge(&target.states(root)?);
        let now = target.possible() - total(&todo);
        let gained = now > obtained;
        obtained = now;
        if !gained {
            break;
        }
    }
    outcome.folio_bytes = Some(obtained);
    outcome.obtained_bytes = Some(if aligned { obtained } else { 0 });
    outcome.users = users::users(root, &target.file)?;
    if obtained < outcome.possible_bytes {
        let gained = obtained > outcome.before_bytes.unwrap_or(0);
        outcome.missing = Some(why(root, path, &outcome.users, held, gained)?);
    } else if !aligned {
        outcome.missing = Some(misaligned(Bytes(obtained), fs_type(root, path).as_deref()));
    } else if target.cut {
        outcome.missing = Some("the file has more data, or more parts, than memory could keep".into());
    }
    Ok(outcome)
}

/// Returns the reason that mappings have no part of the folios that are there.
fn misaligned(folios: Bytes, fs_type: Option<&str>) -> String {
    format!(
        "{folios} lie in huge folios, but {} gives mappings addresses that are no multiples of 2 MiB: a program has \
         huge pages only if it asks for such an address; put the file on ext4, XFS or btrfs, which align it",
        fs_type.unwrap_or("this file system")
    )
}

/// Most passes in which blocks that are not huge yet are dropped and read again. Some blocks need a
/// second one: the kernel reads ahead, and goes on in small folios when it meets pages that are
/// there already.
const MOST_PASSES: usize = 4;

/// Has the kernel collapse blocks in small folios in place, also those that processes have mapped,
/// which cannot be dropped. The blocks that it refuses are read in again.
fn collapse(target: &Target, states: &[(u64, State)]) -> Result<(), RemapError> {
    // Changed pages are not collapsed.
    let _ = file_cache::write_back(&target.file);
    for (at, _) in states.iter().filter(|(_, state)| *state == State::Small) {
        let view = FileView::map(&target.file, *at, HUGE).map_err(RemapError::io(&target.path))?;
        // The states show the result afterwards.
        let _ = view.collapse(0, HUGE);
    }
    Ok(())
}

/// Drops the pages of `todo` and reads them in again. Returns the bytes of blocks that could not be
/// dropped.
fn read_in(root: &KernelRoot, target: &Target, todo: &[FileRange]) -> Result<u64, RemapError> {
    let io = RemapError::io(&target.path);
    // Changed pages cannot be dropped before they are written. A read-only file system has none.
    let _ = file_cache::write_back(&target.file);
    for range in todo {
        file_cache::drop_cached(&target.file, range.offset, range.length).map_err(&io)?;
    }
    let dropped = if target.reports_states { target.states(root)? } else { Vec::new() };
    let small = |(_, state): &&(u64, State)| *state == State::Small;
    let held = HUGE * dropped.iter().filter(small).count() as u64;
    for range in todo {
        let view = FileView::map(&target.file, range.offset, range.length).map_err(&io)?;
        // A kernel without transparent huge pages returns EINVAL. It then reads no huge folios,
        // which is reported below.
        if let Err(error) = view.want_huge()
            && error.kind() != io::ErrorKind::InvalidInput
        {
            return Err(io(error));
        }
        for at in range.blocks() {
            view.populate(at - range.offset, HUGE).map_err(&io)?;
        }
    }
    Ok(held)
}

/// Returns the blocks of `states` that are not huge; `states` is in order.
fn not_huge(states: &[(u64, State)]) -> Vec<FileRange> {
    let mut runs: Vec<FileRange> = Vec::new();
    for (at, _) in states.iter().filter(|(_, state)| *state != State::Huge) {
        match runs.last_mut() {
            Some(last) if last.offset + last.length == *at => last.length += HUGE,
            _ => runs.push(FileRange { offset: *at, length: HUGE }),
        }
    }
    runs
}

fn why(
    root: &KernelRoot,
    path: &Path,
    users: &[User],
    held: u64,
    gained: bool,
) -> Result<String, RemapError> {
    if held > 0 && !users.is_empty() {
        let mut names: Vec<String> =
            users.iter().take(5).map(|user| format!("{} {}", user.command, user.pid)).collect();
        if users.len() > 5 {
            names.push(format!("{} more", users.len() - 5));
        }
        return Ok(format!(
            "{} in small pages are in use by {}: stop what uses the file, prime it, start again",
            Bytes(held),
            names.join(", ")
        ));
    }
    let free: u64 = buddyinfo::buddyinfo(root)?.iter().map(|zone| zone.available(PageSize::HUGE_2M)).sum();
    if gained || free == 0 {
        return Ok(format!(
            "the kernel found too few free blocks of 2 MiB ({free} are left): compact memory (echo 1 > {}) and \
             repeat",
            root.path(reclaim::compact_path(PoolScope::Machine)).display()
        ));
    }
    Ok(no_large_folios(root, fs_type(root, path).as_deref()))
}

/// Returns the reason that a kernel without MADV_POPULATE_READ cannot bring in pages of a file; it
/// came together with MADV_POPULATE_WRITE.
fn no_populate() -> String {
    format!(
        "this kernel lacks MADV_POPULATE_READ (Linux {}), and its file systems have no large folios; put the code on \
         anonymous huge pages instead: megapage run --text thp",
        POPULATE_WRITE.since
    )
}

/// Returns the reason that a file system put nothing into folios of 2 MiB though free ones were
/// there, and the remedy.
fn no_large_folios(root: &KernelRoot, fs_type: Option<&str>) -> String {
    if !THP.is_there(root) {
        return format!("this kernel lacks {}, and maps no file by 2 MiB entries", THP.title());
    }
    let able = format!(
        "XFS has them since Linux {}, ext4 since {}",
        XFS_LARGE_FOLIOS.since, EXT4_LARGE_FOLIOS.since
    );
    let instead = "without, megapage run --text thp puts the code on anonymous huge pages";
    let known = match fs_type {
        Some("ext4") => Some(&EXT4_LARGE_FOLIOS),
        Some("xfs") => Some(&XFS_LARGE_FOLIOS),
        _ => None,
    };
    match (known, fs_type) {
        (Some(ability), Some(fs_type)) if !ability.is_there(root) => format!(
            "{fs_type} has no large folios on this kernel ({able}): put the file on such a file system; {instead}"
        ),
        (Some(_), Some(fs_type)) => format!(
            "{fs_type} took none in a folio of 2 MiB: some features rule large folios out (encryption, verity, \
             data=journal, DAX), and so does a kernel without transparent huge pages; {instead}"
        ),
        (_, Some("tmpfs")) => {
            format!("this tmpfs has no huge pages: mount it with huge=always, or huge=advise; {instead}")
        }
        (_, Some("overlay")) => format!(
            "the file system below the overlay took none in a folio of 2 MiB: it needs large folios ({able}); {instead}"
        ),
        (_, other) => format!(
            "{} took none in a folio of 2 MiB: it is not known to have large folios ({able}): put the file on such a \
             file system; {instead}",
            other.unwrap_or("this file system")
        ),
    }
}

/// Returns the type of the file system that `path` lies on.
fn fs_type(root: &KernelRoot, path: &Path) -> Option<String> {
    let path = path.canonicalize().ok()?;
    let mounts = mounts::mounts(root).ok()?;
    // The longest mount point; of mounts over each other the last.
    let mount = mounts
        .into_iter()
        .filter(|mount| path.starts_with(&mount.point))
        .max_by_key(|mount| mount.point.as_os_str().len())?;
    Some(mount.fs_type)
}

/// Returns a shell line that primes `range`.
fn command(path: &Path, range: &FileRange) -> String {
    format!(
        "python3 -c 'import mmap, os, sys; f = open(sys.argv[1], \"rb\"); at, n = map(int, sys.argv[2:]); \
         os.fsync(f.fileno()); os.posix_fadvise(f.fileno(), at, n, os.POSIX_FADV_DONTNEED); \
         m = mmap.mmap(f.fileno(), n, mmap.MAP_PRIVATE, mmap.PROT_READ, offset=at); \
         m.madvise(mmap.MADV_HUGEPAGE); m.madvise(22)' {} {} {}",
        shell_path(path),
        range.offset,
        range.length
    )
}

/// Drops all cached pages of `path`, so that they come back in small folios as they are read. Pages
/// that a process has mapped stay until it ends.
pub fn undo(root: &KernelRoot, path: &Path, dry_run: bool) -> Result<Undone, RemapError> {
    let (binary, target) = open(root, path)?;
    let mut undone = Undone {
        file: path.to_path_buf(),
        dry_run,
        before_bytes: target.huge(root)?,
        left_bytes: None,
        users: users::users(root, &target.file)?,
        commands: vec![
            format!("sync {}", shell_path(path)),
            format!("dd if={} iflag=nocache count=0 status=none", shell_path(path)),
        ],
    };
    if !dry_run {
        // Changed pages cannot be dropped before they are written, as in `read_in`.
        let _ = file_cache::write_back(&target.file);
        for _ in 0..MOST_PASSES {
            file_cache::drop_cached(&target.file, 0, binary.size.next_multiple_of(BASE_PAGE as u64))
                .map_err(RemapError::io(path))?;
            undone.left_bytes = target.huge(root)?;
            if undone.left_bytes == Some(0) || !undone.users.is_empty() {
                break;
            }
        }
    }
    Ok(undone)
}

#[cfg(test)]
mod tests;
