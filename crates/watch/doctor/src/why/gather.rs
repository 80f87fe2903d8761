//! Gathers the facts for the reasons. Changes nothing, not even a bit of the process.

use super::Target;
use super::facts::{MappingExtra, Morecore, Tmpfs, WhyFacts};
use crate::gather::MORECORE;
use megapage_kernel::ability::{COLLAPSE, THP};
use megapage_kernel::cgroup::Cgroups;
use megapage_kernel::maps::read_maps;
use megapage_kernel::mounts::mounts;
use megapage_kernel::pagemap::Pagemap;
use megapage_kernel::process::{read_environment_variable, read_status};
use megapage_kernel::smaps::read_smaps;
use megapage_kernel::thp::collapse_limits;
use megapage_kernel::{KernelError, KernelRoot};
use megapage_observe::{
    BootClock, Leaf, Mapping, MappingKind, Missed, MissedWhy, ObserveError, Observer, Options, Region,
};
use megapage_units::{Bytes, Pid, VirtRange};
use thiserror::Error;

/// Most regions whose shared pages are counted: 16 GiB, at about 15 ms for each GiB.
const MOST_COUNTED: usize = 8192;

/// Reason why there is no answer.
#[derive(Debug, Error)]
pub enum WhyError {
    /// The process has ended, may not be read by us, or is a kernel thread.
    #[error("--why {}: {}", .0.pid, .0.what)]
    Missed(Missed),
    /// No process has this identifier.
    #[error("--why {0}: there is no process {0}")]
    NoSuchPid(Pid),
    /// Nothing is mapped at the address.
    #[error("--why {pid}:{address:x}: nothing is mapped there{}", hint(*.nearest))]
    Unmapped {
        /// The process.
        pid: Pid,
        /// The address.
        address: u64,
        /// The mapping that is nearest.
        nearest: Option<VirtRange>,
    },
    /// The machine could not be read.
    #[error("{0}")]
    Observe(ObserveError),
    /// A kernel file could not be read.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

fn hint(nearest: Option<VirtRange>) -> String {
    nearest.map(|range| format!("; the nearest mapping is {range}")).unwrap_or_default()
}

/// Reads the machine and the process. For an address, also reads the folios under its memory, as
/// far as the kernel shows them. `root` may be a captured tree.
pub fn gather_why(root: &KernelRoot, target: Target) -> Result<WhyFacts, WhyError> {
    let pid = target.pid;
    if let Err(error) = read_status(root, pid)
        && error.is_gone()
    {
        return Err(WhyError::NoSuchPid(pid));
    }
    let options = Options { sample: false, folios: target.address.is_some(), ..Options::default() };
    let mut observer =
        Observer::with_parts(root, options, None, Box::new(BootClock)).map_err(WhyError::Observe)?;
    let mut snapshot = observer.snapshot(&[pid]);
    if let Some(missed) = snapshot.missed.pop() {
        return Err(WhyError::Missed(missed));
    }
    let Some(process) = snapshot.processes.pop() else {
        return Err(WhyError::Missed(gone(pid)));
    };
    let lift = |error: KernelError| match error {
        error if error.is_gone() => WhyError::Missed(gone(pid)),
        error => WhyError::Kernel(error),
    };
    Ok(WhyFacts {
        extras: extras(root, pid, &process.mappings).map_err(lift)?,
        shared: shared(root, pid, &process.mappings, &process.regions).map_err(lift)?,
        pinned: read_status(root, pid).map_err(lift)?.pinned,
        limits: collapse_limits(root)?,
        memory_group: Cgroups::read(root, Some(pid)).map_err(lift)?.memory,
        tmpfs: tmpfs(root)?,
        has_thp: THP.is_there(root),
        collapse: COLLAPSE.is_there(root),
        morecore: morecore(root, pid, &process.mappings),
        machine: snapshot.machine,
        process,
    })
}

fn gone(pid: Pid) -> Missed {
    Missed { pid, why: MissedWhy::Gone, what: format!("process {pid} has ended") }
}

/// Reads the HUGETLB_MORECORE that the process was started with. The right to read the page tables
/// is enough for this.
fn morecore(root: &KernelRoot, pid: Pid, mappings: &[Mapping]) -> Option<Morecore> {
    let value = read_environment_variable(root, pid, MORECORE).ok()??;
    let is_libc = |name: &str| {
        let file = name.rsplit('/').next().unwrap_or(name);
        file == "libc.so.6" || file.starts_with("libc-2.") || file.starts_with("ld-musl-")
    };
    let libc = mappings.iter().map(|mapping| &mapping.name).find(|name| is_libc(name)).cloned();
    Some(Morecore { value, libc })
}

/// Reads further values of the mappings. A mapping that has changed since it was observed gets
/// none.
fn extras(root: &KernelRoot, pid: Pid, mappings: &[Mapping]) -> Result<Vec<MappingExtra>, KernelError> {
    let maps = read_maps(root, pid)?;
    let smaps = read_smaps(root, pid)?;
    Ok(mappings
        .iter()
        .map(|mapping| {
            let of_file = |kind| matches!(kind, MappingKind::File | MappingKind::Shared);
            let map = maps.binary_search_by_key(&mapping.range.start(), |map| map.range.start()).ok();
            let detail = smaps.binary_search_by_key(&mapping.range.start(), |map| map.range.start()).ok();
            MappingExtra {
                offset: map.filter(|_| of_file(mapping.kind)).map(|index| maps[index].offset),
                merged: detail.map_or(Bytes::ZERO, |index| smaps[index].ksm),
            }
        })
        .collect())
}

/// Counts, for each region of anonymous memory on base pages, the present pages that other
/// processes map, too.
fn shared(
    root: &KernelRoot,
    pid: Pid,
    mappings: &[Mapping],
    regions: &[Region],
) -> Result<Vec<Option<u16>>, KernelError> {
    let pagemap = Pagemap::open(root, pid)?;
    let mut left = MOST_COUNTED;
    regions
        .iter()
        .map(|region| {
            let kind = mappings.get(region.mapping as usize).map(|mapping| mapping.kind);
            let is_own =
                matches!(kind, Some(MappingKind::Heap | MappingKind::Anonymous | MappingKind::Stack));
            if region.leaf != Leaf::Base || region.present == 0 || !is_own || left == 0 {
                return Ok(None);
            }
            left -= 1;
            let entries = pagemap.entries(region.range())?;
            let others = entries.iter().filter(|entry| entry.is_present() && !entry.is_exclusive()).count();
            // The shared page of zeros is never exclusive.
            Ok(Some((others as u16).saturating_sub(region.zero_page)))
        })
        .collect()
}

fn tmpfs(root: &KernelRoot) -> Result<Vec<Tmpfs>, KernelError> {
    let mounts = mounts(root)?.into_iter().filter(|mount| mount.fs_type == "tmpfs");
    Ok(mounts
        .map(|mount| Tmpfs {
            huge: mount.super_option("huge").unwrap_or("never").to_string(),
            point: mount.point,
        })
        .collect())
}
