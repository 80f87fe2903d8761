//! One process: its identity, its mappings, and the backing of its memory.

use crate::mappings::{Details, FlagState, Found, mappings};
use crate::observer::fair::{most_mappings, too_many_mappings};
use crate::regions::{Held, look_up_folios, regions};
use megapage_kernel::kpageflags::FrameFlags;
use megapage_kernel::pagemap;
use megapage_kernel::process::{Stat, read_cgroup, read_children, read_stat, read_status};
use megapage_kernel::shared_memory::MemoryDevices;
use megapage_kernel::thp::is_switched_off;
use megapage_kernel::{KernelError, KernelRoot, effective_uid};
use megapage_snapshot::{Missed, MissedWhy, Process, ProcessId};
use megapage_units::{Pid, VirtRange};
use std::io::ErrorKind;
use std::time::Duration;

/// Largest number of threads whose children are looked up for [`Process::sharing_children`]: one
/// file each.
const MOST_THREADS: usize = 64;

/// State for reading any process.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(crate) root: KernelRoot,
    pub(crate) devices: MemoryDevices,
    /// True if a process with too many mappings for its size is not read.
    pub(crate) bounded: bool,
    /// Frame flags; set if folio orders are wanted and readable.
    pub(crate) flags: Option<FrameFlags>,
}

/// Process, with the values that a snapshot does not keep.
pub(crate) struct ReadProcess {
    pub(crate) process: Process,
    /// For each mapping, true if its regions may be sampled.
    pub(crate) candidates: Vec<bool>,
    /// True if a parent or a child may share its memory since a fork(2).
    pub(crate) shares: bool,
}

/// Returns the identity and stat of the process with this number.
pub(crate) fn identify(root: &KernelRoot, pid: Pid) -> Result<(ProcessId, Stat), Missed> {
    let stat = read_stat(root, pid).map_err(|error| missed(pid, "", &error))?;
    if stat.is_zombie() {
        return Err(gone(pid));
    }
    if stat.is_kernel_thread {
        let what = format!("process {pid} ({}) is a kernel thread: it has no user memory", stat.name);
        return Err(Missed { pid, why: MissedWhy::Failed, what });
    }
    Ok((ProcessId { pid, start_ticks: stat.start_ticks, start_stack: stat.start_stack }, stat))
}

/// Returns the identity of the process with this number. Callers compare it with the observed
/// process, before and after they act on it. Fails for a process that has ended, is a kernel
/// thread, or cannot be read.
pub fn process_id(root: &KernelRoot, pid: Pid) -> Result<ProcessId, Missed> {
    identify(root, pid).map(|(id, _)| id)
}

/// Returns the entry for a process that has ended.
pub(crate) fn gone(pid: Pid) -> Missed {
    Missed { pid, why: MissedWhy::Gone, what: format!("process {pid} has ended") }
}

/// Returns the entry for a process with an unreadable file. `name` may be empty.
pub(crate) fn missed(pid: Pid, name: &str, error: &KernelError) -> Missed {
    let who = if name.is_empty() { format!("process {pid}") } else { format!("process {pid} ({name})") };
    match error {
        error if error.is_gone() => gone(pid),
        KernelError::Io { source, .. } if source.kind() == ErrorKind::PermissionDenied => Missed {
            pid,
            why: MissedWhy::Denied,
            what: format!("{who} is denied to us: {error}; {}", remedy(effective_uid() == 0)),
        },
        // The text is the same each time, though the counts change.
        KernelError::Io { source, .. } if source.kind() == ErrorKind::FileTooLarge => {
            too_many_mappings(pid, name)
        }
        error if error.is_locked() => Missed {
            pid,
            why: MissedWhy::Locked,
            what: format!(
                "{who} does not answer: its memory map is locked; megapage skips it, and tries again later"
            ),
        },
        error => Missed { pid, why: MissedWhy::Failed, what: format!("{who} cannot be read: {error}") },
    }
}

/// Returns the remedy for a denial (ptrace(2), "Ptrace access mode checking").
fn remedy(root: bool) -> &'static str {
    match root {
        false => "run megapage as its user or as root",
        true => {
            "it has capabilities that megapage lacks, or another user namespace: that takes CAP_SYS_PTRACE, or to be \
             run outside the container"
        }
    }
}

impl Reader {
    /// Reads the process `id` with the stat `stat`. The caller must check afterwards that it is
    /// still that process. `now` is a clock of any origin. `tables` reads what its ranges hold from
    /// the page tables if it can. `state` is as of before the call.
    pub(crate) fn read(
        &mut self,
        id: ProcessId,
        stat: &Stat,
        details: &mut Details,
        now: &dyn Fn() -> Duration,
        state: &FlagState,
        tables: impl FnOnce(&[VirtRange]) -> Option<Vec<pagemap::Region>>,
    ) -> Result<ReadProcess, KernelError> {
        let (root, pid) = (&self.root, id.pid);
        let status = read_status(root, pid)?;
        let most = self.bounded.then(|| most_mappings(status.rss_anonymous));
        let found = mappings(root, pid, &self.devices, details, now, state, most)?;
        let Held { mut regions, backing, leaves_known } = regions(root, pid, &found, tables)?;
        details.leaves_known = leaves_known;
        if let Some(flags) = &self.flags {
            match look_up_folios(root, pid, flags, &mut regions) {
                // Without CAP_SYS_ADMIN here, the next process is refused as well.
                Err(error) if is_denied(&error) => self.flags = None,
                other => other?,
            }
        }
        let sharing_children =
            sharing_children(root, id, MOST_THREADS)?.map(|children| children.count() as u32);
        let parent = read_stat(root, stat.parent).ok();
        let shares_with_parent =
            parent.is_some_and(|parent| parent.start_stack == id.start_stack && id.start_stack != 0);
        Ok(ReadProcess {
            candidates: found.iter().map(Found::is_candidate).collect(),
            shares: shares_with_parent || sharing_children.is_none_or(|count| count > 0),
            process: Process {
                id,
                parent: stat.parent,
                name: stat.name.clone(),
                uid: status.uids[0],
                // A control group that is gone or hidden is no reason to fail.
                cgroup: read_cgroup(root, pid).unwrap_or_default(),
                // The observer fills it in.
                memory_limit: None,
                threads: status.threads,
                cpu: stat.cpu,
                rss: status.rss,
                rss_anonymous: status.rss_anonymous,
                swap: status.swap,
                page_tables: status.page_tables,
                backing,
                thp_disabled: is_switched_off(root, &status),
                mappings: found.into_iter().map(|found| found.mapping).collect(),
                regions,
                sharing_children,
                translation: None,
                sampling: None,
            },
        })
    }
}

/// Returns the children with the stack of their parent: they were forked and have not executed a
/// program. `None` if the kernel does not report it, or the process has more threads than
/// `most_threads`: one file each.
fn sharing_children(
    root: &KernelRoot,
    id: ProcessId,
    most_threads: usize,
) -> Result<Option<impl Iterator<Item = Pid>>, KernelError> {
    let known = match id.start_stack {
        0 => None,
        _ => read_children(root, id.pid, most_threads)?,
    };
    Ok(known.map(|children| children.into_iter().filter(move |child| shares_stack(root, id, *child))))
}

/// Returns true if a child shares its parent's memory since a fork(2): it lives, and has not
/// executed a program.
pub fn shares_stack(root: &KernelRoot, parent: ProcessId, child: Pid) -> bool {
    read_stat(root, child).is_ok_and(|stat| {
        stat.parent == parent.pid && stat.start_stack == parent.start_stack && !stat.is_zombie()
    })
}

/// Returns a child that shares the memory of this process since a fork(2), as a snapshot would
/// count it; `Some(None)`: there is none. `None` if the kernel does not report it, the process has
/// more than `most_threads` threads, or it is another process now.
pub fn sharing_child(root: &KernelRoot, id: ProcessId, most_threads: usize) -> Option<Option<Pid>> {
    let first = sharing_children(root, id, most_threads).ok()??.next();
    process_id(root, id.pid).is_ok_and(|now| now == id).then_some(first)
}

fn is_denied(error: &KernelError) -> bool {
    matches!(error, KernelError::Io { source, .. } if source.kind() == ErrorKind::PermissionDenied)
}

#[cfg(test)]
mod tests;
