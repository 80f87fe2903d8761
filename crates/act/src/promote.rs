//! Promotion: the kernel's collapse of base pages to huge pages in another process, and proof of
//! its effect.

use crate::engine::{Advice, Answer, Clock, Refusal, Target, Terms, Tried, advise};
use crate::execute::promote_line;
use crate::remote::{call_failed, refusal};
use crate::shared;
use crate::sharing::Sharing;
use megapage_decide::Promotions;
use megapage_kernel::ability::PAGEMAP_SCAN;
use megapage_kernel::pagemap::Region;
use megapage_kernel::smaps::{Mapping, read_smaps};
use megapage_kernel::{KernelRoot, boot_time};
use megapage_observe::PageTables;
use megapage_snapshot::ProcessId;
use megapage_units::{Bytes, HUGE_2M, HugePage, PageSize, Pid};
use serde::Serialize;
use std::thread::sleep;
use std::time::{Duration, Instant};

pub use crate::remote::{Bounds, RemoteError as PromoteError, identify, lacking_ability, lacking_right};
pub use crate::shared::SharedMemory;

/// Consecutive refusals for lack of a huge page after which a promotion ends.
const MOST_SHORTAGES: u32 = 4;
/// Most further calls for one refused region, before Linux 6.7.
const MOST_REPEATS: u32 = 2;

/// Regions of one process to promote.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Promotion {
    /// The process. Another one with its number, or another program, is not touched.
    pub process: ProcessId,
    /// Regions of the process.
    pub regions: Vec<HugePage>,
    /// Bounds on its cost.
    pub bounds: Bounds,
}

/// Outcome of a promotion. All values are of regions or bytes of this promotion alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct PromoteOutcome {
    /// Bytes to be promoted.
    pub asked_bytes: u64,
    /// Bytes of those that the page tables show as huge afterwards.
    pub obtained_bytes: u64,
    /// System calls made.
    pub calls: u64,
    /// Regions refused for now: pinned, locked or off the LRU (EAGAIN).
    pub busy: u64,
    /// Regions that cannot be collapsed (EINVAL): no page table, write-protected by userfaultfd.
    pub not_collapsible: u64,
    /// Bytes on base pages that were not asked for because the program has excluded them
    /// (MADV_NOHUGEPAGE), as of the last look for candidates.
    pub excluded_bytes: u64,
    /// Regions refused for lack of a huge page or of room in the control group (ENOMEM, EBUSY), or
    /// because they are no longer mapped. Also regions not asked for because the machine has too
    /// little available memory.
    pub no_memory: u64,
    /// Regions not asked for because another process shares pages of them since a fork: a collapse
    /// would copy them.
    pub shared: u64,
    /// Regions that were not tried: time was up, memory was short, calls were slow, or the process
    /// ended.
    pub not_tried: u64,
    /// Time from the first call to the end of the last, in nanoseconds.
    pub elapsed_ns: u64,
    /// Processor time of the calls, in nanoseconds: the process may have waited that long for its
    /// memory.
    pub busy_ns: u64,
    /// True if the process ended in between, which is no error.
    pub gone: bool,
}

/// Outcome of a promotion, region by region.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Applied {
    /// Totals of all regions.
    pub outcome: PromoteOutcome,
    /// The regions that the kernel was asked to collapse.
    pub tried: Vec<HugePage>,
    /// The regions that were not tried.
    pub left: Vec<HugePage>,
    /// The regions that are huge now. Before Linux 6.7, which does not distinguish regions: as many
    /// as have become huge since. Those that were huge before do not count.
    pub huge: Vec<HugePage>,
}

impl PromoteOutcome {
    /// Adds the values of a later promotion of the same process. Skips the bytes asked, obtained
    /// and excluded: both promotions may name the same regions.
    pub fn add(&mut self, later: PromoteOutcome) {
        self.calls += later.calls;
        self.busy += later.busy;
        self.not_collapsible += later.not_collapsible;
        self.no_memory += later.no_memory;
        self.shared += later.shared;
        self.not_tried += later.not_tried;
        self.elapsed_ns += later.elapsed_ns;
        self.busy_ns += later.busy_ns;
        self.gone |= later.gone;
    }
}

/// Regions of a process that could be promoted, and the memory left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Candidates {
    /// Regions that are dense enough and not huge: private ones, then shared ones.
    pub regions: Vec<HugePage>,
    /// Present bytes of private memory on base pages in regions too sparse, outside whole regions,
    /// or in regions beyond the most that were asked for.
    pub left_out: Bytes,
    /// Present bytes on base pages in mappings that the program has excluded (MADV_NOHUGEPAGE): the
    /// kernel collapses none of them.
    pub excluded: Bytes,
    /// The shared memory.
    pub shared: SharedMemory,
}

/// Returns at most `most` regions of `pid` that are not huge yet, in private, writable, anonymous
/// memory and in shared memory. Each has at least `least_present` (1 to 512) of its base pages
/// present; in shared memory, pages in memory count, touched by any process. A collapse fills the
/// others with zeros.
pub fn candidates(
    root: &KernelRoot,
    pid: Pid,
    least_present: u16,
    most: usize,
) -> Result<Candidates, PromoteError> {
    let mut found = Candidates::default();
    let mut tables = PageTables::open(root, pid).map_err(|error| refusal(root, pid, error))?;
    let mappings = read_smaps(root, pid).map_err(|error| refusal(root, pid, error))?;
    for mapping in &mappings {
        let on_base = mapping.backing().base;
        if !is_promotable(mapping) || on_base == Bytes::ZERO {
            continue;
        }
        if mapping.has_flag("nh") {
            found.excluded += on_base;
            continue;
        }
        let mut taken = Bytes::ZERO;
        for region in tables.regions_in(mapping).map_err(|error| refusal(root, pid, error))? {
            if region.huge != Some(true)
                && region.present >= least_present.max(1)
                && found.regions.len() < most
            {
                taken += region.present_bytes();
                found.regions.push(region.page);
            }
        }
        found.left_out += on_base.saturating_sub(taken);
    }
    let left = most - found.regions.len();
    let shared = shared::find(root, pid, &mappings, &mut tables, least_present, left)?;
    found.regions.extend(shared.regions);
    found.shared = shared.memory;
    Ok(found)
}

/// Returns the shared memory that `pid` maps, and the part that could be promoted: regions with at
/// least `least_present` base pages in memory.
pub fn shared_memory(root: &KernelRoot, pid: Pid, least_present: u16) -> Result<SharedMemory, PromoteError> {
    let mut tables = PageTables::open(root, pid).map_err(|error| refusal(root, pid, error))?;
    let mappings = read_smaps(root, pid).map_err(|error| refusal(root, pid, error))?;
    Ok(shared::find(root, pid, &mappings, &mut tables, least_present, 0)?.memory)
}

/// Separates `regions` of `pid` into those whose pages it alone maps, and those with one or more
/// pages that another process maps as well. Such a process is a forked child that has not executed
/// a program, its children, or any process that KSM has merged pages for. If sharing is unknown
/// (before Linux 6.7, without root), all count as its own. The promotion itself is less strict, see
/// the module `sharing`.
pub fn part_shared(
    root: &KernelRoot,
    pid: Pid,
    regions: Vec<HugePage>,
) -> Result<(Vec<HugePage>, Vec<HugePage>), PromoteError> {
    let mut tables = PageTables::open(root, pid).map_err(|error| refusal(root, pid, error))?;
    let (mut own, mut shared) = (Vec::new(), Vec::new());
    for region in regions {
        match Sharing::NoPage.unfit(&mut tables, region, None).map_err(|error| refusal(root, pid, error))? {
            Some(_) => shared.push(region),
            None => own.push(region),
        }
    }
    Ok((own, shared))
}

/// Returns true if the mapping holds memory that the program uses as heap and that a collapse can
/// act on.
fn is_promotable(mapping: &Mapping) -> bool {
    mapping.is_heap_like() && mapping.kernel_page_size == PageSize::BASE
}

/// Returns those of `regions` that have become huge between two readings of smaps; all are huge
/// now, as far as is known. Takes at most as many in each mapping as its huge memory has grown by.
fn huge_since(before: &[Mapping], after: &[Mapping], regions: &[HugePage]) -> Vec<HugePage> {
    let mut found = Vec::new();
    for mapping in after {
        let was: Bytes = before
            .iter()
            .filter(|former| former.range.intersection(mapping.range).is_some())
            .map(on_huge)
            .sum();
        let grown = on_huge(mapping).saturating_sub(was).0 / HugePage::SIZE;
        let inside =
            regions.iter().filter(|page| page.range().intersection(mapping.range) == Some(page.range()));
        found.extend(inside.take(grown as usize));
    }
    found
}

/// Returns the bytes that smaps counts on huge pages of the kinds that a collapse makes.
fn on_huge(mapping: &Mapping) -> Bytes {
    mapping.anon_huge + mapping.shmem_pmd + mapping.file_pmd
}

impl Promotion {
    /// Asks the kernel to collapse the regions, batch by batch, and reads the effect from the page
    /// tables. Ends early if the process is backed off; [`Promotions::pause`] returns the time that
    /// is left.
    ///
    /// # Errors
    /// [`PromoteError::Gone`] also if another process has its number now, or it runs another
    /// program.
    pub fn apply(&self, root: &KernelRoot, promotions: &mut Promotions) -> Result<Applied, PromoteError> {
        if let Some(ability) = lacking_ability(root).filter(|_| root.is_live()) {
            return Err(PromoteError::Unsupported(ability));
        }
        let pid = self.process.pid;
        let mut outcome = PromoteOutcome {
            asked_bytes: self.regions.len() as u64 * HUGE_2M as u64,
            ..PromoteOutcome::default()
        };
        let mut target = Target::open_permitted(root, self.process)?;
        // Before Linux 6.7 the page map shows no huge entries: smaps reports what was huge before,
        // for whole mappings.
        let before = if PAGEMAP_SCAN.is_there(root) { None } else { Some(self.smaps(root)?) };
        let start = Instant::now();
        let Bounds { batch, time, pause_percent } = self.bounds;
        let clock = Clock { now: boot_time(), started: start, most: time, urgent: false };
        let terms = Terms { clock, batch, pause_percent, shortages: MOST_SHORTAGES };
        let (mut calls, mut busy) = (0, Duration::ZERO);
        let mut tried = advise(promotions, Advice::Collapse, &mut target, &self.regions, &terms, |call| {
            calls += 1;
            busy += call.busy;
        });
        if before.is_some() {
            calls += self.map_what_was_collapsed(promotions, &mut target, &mut tried, &terms);
        }
        outcome.calls = calls;
        outcome.busy_ns = busy.as_nanos() as u64;
        outcome.elapsed_ns = start.elapsed().as_nanos() as u64;
        let (mut asked, mut left, mut accepted) = (Vec::new(), Vec::new(), Vec::new());
        for (tried, region) in tried.into_iter().zip(&self.regions) {
            if tried.answer.was_asked() {
                asked.push(*region);
            }
            match tried.answer {
                Answer::Accepted => accepted.push(*region),
                Answer::NotTried => {
                    left.push(*region);
                    outcome.not_tried += 1;
                }
                Answer::Refused(Refusal::Busy) => outcome.busy += 1,
                Answer::Refused(Refusal::Invalid) => outcome.not_collapsible += 1,
                Answer::Refused(Refusal::NoMemory | Refusal::GroupFull | Refusal::BelowFloor) => {
                    outcome.no_memory += 1;
                }
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
        accepted.sort_unstable();
        let huge = match self.huge(root, &mut target, before, &accepted) {
            Ok(huge) => huge,
            Err(PromoteError::Gone(_)) => {
                outcome.gone = true;
                Vec::new()
            }
            Err(error) => return Err(error),
        };
        outcome.obtained_bytes = huge.len() as u64 * HUGE_2M as u64;
        Ok(Applied { outcome, tried: asked, left, huge })
    }

    /// Does the same for a caller that waits. If the process is backed off, sleeps until that ends
    /// and goes on with the other regions, within the time of the bounds. Returns without waiting
    /// if memory is short, because the shortage may last.
    pub fn apply_patiently(
        &self,
        root: &KernelRoot,
        promotions: &mut Promotions,
    ) -> Result<PromoteOutcome, PromoteError> {
        let start = Instant::now();
        let mut outcome: Option<PromoteOutcome> = None;
        let mut part = self.clone();
        loop {
            part.bounds.time = self.bounds.time.saturating_sub(start.elapsed());
            let applied = match (part.apply(root, promotions), outcome) {
                // The process ended between two turns.
                (Err(PromoteError::Gone(_)), Some(former)) => {
                    return Ok(PromoteOutcome { gone: true, not_tried: part.regions.len() as u64, ..former });
                }
                (applied, _) => applied?,
            };
            let sum = outcome.get_or_insert(PromoteOutcome {
                asked_bytes: self.regions.len() as u64 * HUGE_2M as u64,
                ..PromoteOutcome::default()
            });
            sum.obtained_bytes += applied.outcome.obtained_bytes;
            sum.not_tried = 0;
            sum.add(applied.outcome);
            let rest = promotions.pause(boot_time(), self.process, true);
            let is_over = applied.left.is_empty() || sum.no_memory > 0 || sum.gone || rest.is_zero();
            if is_over || start.elapsed() + rest >= self.bounds.time {
                return Ok(*sum);
            }
            sleep(rest);
            part.regions = applied.left;
        }
    }

    /// Repeats the calls for refused regions, [`MOST_REPEATS`] times each at most, and returns the
    /// number of calls. Before Linux 6.7 a process may have no page table for a region of shared
    /// memory. The kernel then collapses the region in the object, refuses to map it there, and
    /// maps it when asked again. Regions that time runs out for, or that the guard puts off, wait
    /// for the next pass.
    fn map_what_was_collapsed(
        &self,
        promotions: &mut Promotions,
        target: &mut Target,
        tried: &mut [Tried],
        terms: &Terms,
    ) -> u64 {
        let mut calls = 0;
        for (tried, region) in tried.iter_mut().zip(&self.regions) {
            // One call may find pages on their way to the LRU lists, the next collapses them, and a
            // third maps them.
            for _ in 0..MOST_REPEATS {
                let is_for_now = matches!(tried.answer, Answer::Refused(Refusal::Busy | Refusal::Invalid));
                if !is_for_now {
                    break;
                }
                let again = advise(promotions, Advice::Collapse, target, &[*region], terms, |_| calls += 1);
                match again[0].answer {
                    answer @ (Answer::Accepted | Answer::NotTried) => tried.answer = answer,
                    Answer::Refused(_) => {}
                }
            }
        }
        calls
    }

    /// Returns the regions that are huge now, by the page tables. If these do not show it, compares
    /// smaps with `before`.
    fn huge(
        &self,
        root: &KernelRoot,
        target: &mut Target,
        before: Option<Vec<Mapping>>,
        accepted: &[HugePage],
    ) -> Result<Vec<HugePage>, PromoteError> {
        let seen = target.look(&self.regions)?;
        let Some(before) = before else {
            return Ok(seen
                .values()
                .filter(|region| region.huge == Some(true))
                .map(|region| region.page)
                .collect());
        };
        // A call that was refused as a whole may have made some of its regions huge. For a region
        // of unknown state, the call's answer counts.
        let is_huge =
            |region: &Region| region.huge.unwrap_or_else(|| accepted.binary_search(&region.page).is_ok());
        let huge: Vec<HugePage> =
            seen.values().filter(|region| is_huge(region)).map(|region| region.page).collect();
        Ok(huge_since(&before, &self.smaps(root)?, &huge))
    }

    fn smaps(&self, root: &KernelRoot) -> Result<Vec<Mapping>, PromoteError> {
        let pid = self.process.pid;
        read_smaps(root, pid).map_err(|error| refusal(root, pid, error))
    }

    /// Returns the shell lines that correspond to [`Promotion::apply`]. No shell command collapses
    /// single regions: the line that acts is megapage's own.
    pub fn dry_run(&self) -> Vec<String> {
        let mut lines: Vec<String> = self
            .regions
            .iter()
            .map(|region| promote_line(self.process.pid, &region.range().to_string()))
            .collect();
        lines.push(format!("megapage run --attach {} --once", self.process.pid));
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_units::{HugeCount, VirtRange};
    use std::fs;

    fn own() -> Pid {
        Pid(std::process::id() as i32)
    }

    #[test]
    fn a_captured_tree_is_not_acted_on() {
        let process = identify(&KernelRoot::live(), own()).unwrap();
        let promotion = Promotion { process, regions: vec![], bounds: Bounds::default() };
        let tree = tempfile::tempdir().unwrap();
        let refused = promotion.apply(&KernelRoot::captured(tree.path()), &mut Promotions::default());
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
        assert!(lacking().unwrap().contains("user 1000: external promotion needs CAP_SYS_PTRACE"));
        status("self", 1001, "880000");
        assert_eq!(lacking(), None);
    }

    fn mapping(first: u64, end: u64, huge: u64) -> Mapping {
        let range = VirtRange::new(HugePage::nth(first).start(), HugePage::nth(end).start()).unwrap();
        Mapping { anon_huge: HugeCount(huge).bytes(), ..Mapping::untouched(range, "rw-p", "") }
    }

    #[test]
    fn what_was_huge_before_was_not_obtained() {
        let accepted: Vec<HugePage> = (8..16).chain(20..24).map(HugePage::nth).collect();
        let before = [mapping(8, 16, 6), mapping(20, 24, 0)];
        let obtained = |after: &[Mapping]| {
            let huge = huge_since(&before, after, &accepted);
            huge.iter().map(|region| region.number()).collect::<Vec<_>>()
        };
        assert_eq!(obtained(&[mapping(8, 16, 8), mapping(20, 24, 3)]), [8, 9, 20, 21, 22]);
        assert_eq!(obtained(&before), Vec::<u64>::new());
        assert_eq!(
            obtained(&[mapping(8, 16, 5), mapping(20, 24, 0)]),
            Vec::<u64>::new(),
            "the kernel has split one meanwhile"
        );
        // Mappings that have merged or split are counted at their present place.
        assert_eq!(obtained(&[mapping(8, 24, 9)]), [8, 9, 10]);
        assert_eq!(
            obtained(&[mapping(8, 12, 4), mapping(12, 16, 4)]),
            Vec::<u64>::new(),
            "which of them is new cannot be told"
        );
        assert_eq!(obtained(&[mapping(8, 16, 400)]).len(), 8, "never more than was accepted");
        assert_eq!(obtained(&[]), Vec::<u64>::new());
    }

    #[test]
    fn a_process_that_is_not_there_is_gone() {
        let tree = tempfile::tempdir().unwrap();
        let root = KernelRoot::captured(tree.path());
        assert!(matches!(candidates(&root, Pid(1), 1, 10), Err(PromoteError::Gone(Pid(1)))));
    }
}
