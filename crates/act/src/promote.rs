//! Promotion: the kernel's collapse of base pages to huge pages in another process, and proof of what came
//! of it.

use crate::engine::{Advice, Answer, Refusal, Target, advise};
use crate::execute::promote_line;
use crate::remote::{call_failed, refusal};
use crate::sharing::Sharing;
use megapage_kernel::KernelRoot;
use megapage_kernel::smaps::{Mapping, read_smaps};
use megapage_observe::PageTables;
use megapage_units::{Bytes, HUGE_2M, PageSize, Pid, VirtRange};
use serde::Serialize;
use std::time::{Duration, Instant};

pub use crate::execute::ready::Ready;
pub use crate::remote::{Bounds, RemoteError as PromoteError, lacking_ability, lacking_right};

/// Refusals for want of a huge page, one after the other, after which a promotion ends.
const MOST_SHORTAGES: u32 = 4;
/// No rest between two calls is longer.
const MOST_REST: Duration = Duration::from_millis(50);

/// Regions of one process that are to be huge.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promotion {
    /// The process.
    pub pid: Pid,
    /// Aligned 2 MiB regions.
    pub regions: Vec<VirtRange>,
    /// What it may cost.
    pub bounds: Bounds,
}

/// What came of a promotion. All figures are of regions or bytes of this promotion alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PromoteOutcome {
    /// Bytes that were to be huge.
    pub asked_bytes: u64,
    /// Bytes of those that the page tables show as huge afterwards.
    pub obtained_bytes: u64,
    /// System calls made.
    pub calls: u64,
    /// Regions refused for now: pinned, locked or off the LRU (EAGAIN).
    pub busy: u64,
    /// Regions that cannot be collapsed (EINVAL): no page table, `VM_NOHUGEPAGE`, write-protected by userfaultfd.
    pub not_collapsible: u64,
    /// Regions refused for want of a huge page or of room in the control group (ENOMEM, EBUSY), or unmapped
    /// since.
    pub no_memory: u64,
    /// Regions left as they are because another process shares pages of them since a fork: a collapse would copy them.
    pub shared: u64,
    /// Regions that were not tried: time was up, memory was short, or the process ended.
    pub not_tried: u64,
    /// Time in the calls, in nanoseconds.
    pub elapsed_ns: u64,
    /// Whether the process ended in between. That is no error.
    pub gone: bool,
}

impl PromoteOutcome {
    /// Adds the figures of a later promotion of the same process.
    pub fn add(&mut self, later: PromoteOutcome) {
        self.asked_bytes += later.asked_bytes;
        self.obtained_bytes += later.obtained_bytes;
        self.calls += later.calls;
        self.busy += later.busy;
        self.not_collapsible += later.not_collapsible;
        self.no_memory += later.no_memory;
        self.shared += later.shared;
        self.not_tried += later.not_tried;
        self.elapsed_ns += later.elapsed_ns;
        self.gone |= later.gone;
    }
}

/// What of a process could be promoted.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidates {
    /// Regions that are not huge and dense enough.
    pub regions: Vec<VirtRange>,
    /// Present bytes that are on base pages in regions too sparse, or outside whole regions.
    pub left_out: Bytes,
}

/// The regions of `pid` in private, writable, anonymous memory that are not huge yet and have at least
/// `least_present` (1 to 512) of their base pages present: a collapse fills the others with zeros. At most
/// `most` regions.
pub fn candidates(
    root: &KernelRoot,
    pid: Pid,
    least_present: u16,
    most: usize,
) -> Result<Candidates, PromoteError> {
    let mut found = Candidates::default();
    let mut tables = PageTables::open(root, pid).map_err(|error| refusal(root, pid, error))?;
    for mapping in read_smaps(root, pid).map_err(|error| refusal(root, pid, error))? {
        let on_base = mapping.backing().base;
        if !is_promotable(&mapping) || on_base == Bytes::ZERO {
            continue;
        }
        let mut taken = Bytes::ZERO;
        for region in tables.regions_in(&mapping)? {
            if region.huge != Some(true)
                && region.present >= least_present.max(1)
                && found.regions.len() < most
            {
                taken += region.present_bytes();
                found.regions.push(region.range);
            }
        }
        found.left_out += on_base.saturating_sub(taken);
    }
    Ok(found)
}

/// Parts `regions` of `pid` into those whose pages are its own, and those of which another process maps one or more as
/// well: a forked child that has not executed a program, its children, or whoever KSM has merged them for. Where nobody
/// can tell (before Linux 6.7, without root), all are its own. The promotion itself is less strict, see the module `sharing`.
pub fn part_shared(
    root: &KernelRoot,
    pid: Pid,
    regions: Vec<VirtRange>,
) -> Result<(Vec<VirtRange>, Vec<VirtRange>), PromoteError> {
    let mut tables = PageTables::open(root, pid).map_err(|error| refusal(root, pid, error))?;
    let (mut own, mut shared) = (Vec::new(), Vec::new());
    for region in regions {
        match Sharing::NoPage.is_exceeded(&mut tables, region).map_err(|error| refusal(root, pid, error))? {
            true => shared.push(region),
            false => own.push(region),
        }
    }
    Ok((own, shared))
}

/// Whether a mapping holds memory that the program uses as heap and that a collapse is for.
fn is_promotable(mapping: &Mapping) -> bool {
    mapping.is_heap_like() && mapping.kernel_page_size == PageSize::BASE
}

impl Promotion {
    /// Asks the kernel to collapse the regions, batch by batch, and reads from the page tables what came of it.
    pub fn apply(&self, root: &KernelRoot) -> Result<PromoteOutcome, PromoteError> {
        self.apply_with(root, &mut Ready::default())
    }

    /// The same, with huge pages made ready ahead of the calls where `ready` has found that to be worth it.
    pub fn apply_with(&self, root: &KernelRoot, ready: &mut Ready) -> Result<PromoteOutcome, PromoteError> {
        if !root.is_live() {
            return Err(PromoteError::NotLive);
        }
        if let Some(ability) = lacking_ability(root) {
            return Err(PromoteError::Unsupported(ability));
        }
        let pid = self.pid;
        let mut outcome = PromoteOutcome {
            asked_bytes: self.regions.len() as u64 * HUGE_2M as u64,
            ..PromoteOutcome::default()
        };
        if let Some(lacking) = lacking_right(root, Some(pid)).map_err(|error| refusal(root, pid, error))? {
            return Err(PromoteError::NotAllowed { pid, lacking });
        }
        let mut target = Target::open(root, pid)?;
        let start = Instant::now();
        let (mut calls, mut shortages) = (0, 0);
        ready.begin();
        let mut size = ready.before(self.bounds.batch.min(self.regions.len()));
        let tried = advise(&mut target, Advice::Collapse, &self.regions, size, |call| {
            let Some(call) = call else {
                return (start.elapsed() < self.bounds.time).then_some(size);
            };
            calls += 1;
            ready.after(&call);
            match call.refused {
                None => shortages = 0,
                Some(Refusal::NoMemory | Refusal::GroupFull) => shortages += 1,
                Some(refusal) if refusal.is_final() => return None,
                Some(_) => {}
            }
            let goes_on = shortages < MOST_SHORTAGES && start.elapsed() < self.bounds.time;
            if goes_on {
                std::thread::sleep((call.took * self.bounds.rest_percent / 100).min(MOST_REST));
                size = ready.before(self.bounds.batch).max(1);
            }
            goes_on.then_some(size)
        });
        outcome.calls = calls;
        outcome.elapsed_ns = start.elapsed().as_nanos() as u64;
        for tried in tried {
            match tried.answer {
                Answer::Accepted => {}
                Answer::NotTried => outcome.not_tried += 1,
                Answer::Refused(Refusal::Busy) => outcome.busy += 1,
                Answer::Refused(Refusal::Invalid) => outcome.not_collapsible += 1,
                Answer::Refused(Refusal::NoMemory | Refusal::GroupFull) => outcome.no_memory += 1,
                Answer::Refused(Refusal::Shared) => outcome.shared += 1,
                Answer::Refused(refusal) => {
                    if let Some(error) =
                        call_failed(root, pid, refusal.to_error(), Advice::Collapse.ability())
                    {
                        return Err(error);
                    }
                    outcome.gone = true;
                    // The process ended before this region was dealt with.
                    outcome.not_tried += 1;
                }
            }
        }
        match self.verify(root, &mut target) {
            Ok(obtained) => outcome.obtained_bytes = obtained.0,
            Err(PromoteError::Gone(_)) => outcome.gone = true,
            Err(error) => return Err(error),
        }
        Ok(outcome)
    }

    /// The bytes of the regions that are huge now, by the page tables; on kernels before 6.7 by smaps, which
    /// also counts what was huge before in the same mapping.
    fn verify(&self, root: &KernelRoot, target: &mut Target) -> Result<Bytes, PromoteError> {
        let seen = target.look(root, &self.regions)?;
        if seen.values().any(|region| region.huge.is_none()) {
            return self.verify_by_smaps(root);
        }
        let huge = seen.values().filter(|region| region.huge == Some(true)).count() as u64;
        Ok(Bytes(huge * HUGE_2M as u64))
    }

    fn verify_by_smaps(&self, root: &KernelRoot) -> Result<Bytes, PromoteError> {
        let mappings = read_smaps(root, self.pid).map_err(|error| refusal(root, self.pid, error))?;
        let mine = |mapping: &&Mapping| {
            self.regions.iter().any(|region| region.intersection(mapping.range).is_some())
        };
        let huge: Bytes = mappings.iter().filter(mine).map(|mapping| mapping.anon_huge).sum();
        Ok(huge.min(Bytes(self.regions.len() as u64 * HUGE_2M as u64)))
    }

    /// What [`Promotion::apply`] would do, as shell lines. No shell command collapses single regions: the
    /// line that acts is megapage's own.
    pub fn dry_run(&self) -> Vec<String> {
        let mut lines: Vec<String> =
            self.regions.iter().map(|region| promote_line(self.pid, &region.to_string())).collect();
        lines.push(format!("megapage run --attach {} --once", self.pid));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn own() -> Pid {
        Pid(std::process::id() as i32)
    }

    #[test]
    fn a_captured_tree_is_not_acted_on() {
        let promotion = Promotion { pid: own(), regions: vec![], bounds: Bounds::default() };
        let tree = tempfile::tempdir().unwrap();
        let refused = promotion.apply(&KernelRoot::captured(tree.path()));
        assert!(matches!(refused, Err(PromoteError::NotLive)));
    }

    #[test]
    fn the_right_that_lacks_is_named() {
        let tree = tempfile::tempdir().unwrap();
        let status = |directory: &str, uid: u32, capabilities: &str| {
            let directory = tree.path().join("proc").join(directory);
            fs::create_dir_all(&directory).unwrap();
            let text = format!(
                "Name:\tx\nState:\tS (sleeping)\nTgid:\t9\nUid:\t{uid}\t{uid}\t{uid}\t{uid}\n\
                 Gid:\t1\t1\t1\t1\nGroups:\t\nCapEff:\t{capabilities}\nNoNewPrivs:\t0\nSeccomp:\t0\n"
            );
            fs::write(directory.join("status"), text).unwrap();
        };
        let root = KernelRoot::captured(tree.path());
        let lacking = || lacking_right(&root, Some(Pid(9))).unwrap();
        status("9", 1000, "0");
        status("self", 1000, "0");
        assert!(lacking().unwrap().contains("CAP_SYS_NICE"));
        status("self", 1000, "800000");
        assert_eq!(lacking(), None);
        status("self", 1001, "800000");
        assert!(lacking().unwrap().contains("user 1000: promotion from outside needs CAP_SYS_PTRACE"));
        status("self", 1001, "880000");
        assert_eq!(lacking(), None);
    }

    #[test]
    fn a_process_that_is_not_there_is_gone() {
        let tree = tempfile::tempdir().unwrap();
        let root = KernelRoot::captured(tree.path());
        assert!(matches!(candidates(&root, Pid(1), 1, 10), Err(PromoteError::Gone(Pid(1)))));
    }
}
