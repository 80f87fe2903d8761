//! Regions of a process that are made huge for a trial, and split again however megapage ends.

use crate::demote::{self, Demotion};
use crate::promote::{PromoteOutcome, Promotion, part_shared};
use crate::remote::{Bounds, RemoteError, refusal};
use megapage_decide::Promotions;
use megapage_kernel::guard::{Guard, Rounds};
use megapage_kernel::process::read_stat;
use megapage_kernel::smaps::read_smaps;
use megapage_kernel::{KernelRoot, spawn};
use megapage_observe::{PageTables, on_larger_folios};
use megapage_snapshot::ProcessId;
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, HugeCount, HugePage, PageSize, Pid, VirtRange};
use std::os::fd::AsFd;
use std::time::Duration;

/// Attempts at promotion, while fewer than 90 % of the regions become huge, and the pause between
/// two.
const ATTEMPTS: u32 = 3;
const PROMOTE_PAUSE: Duration = Duration::from_millis(200);
/// Attempts at undoing, and the pause between two. Pages that have just been allocated are on their
/// way to the LRU lists, and cannot be split yet.
const UNDO_ATTEMPTS: u32 = 5;
const UNDO_PAUSE: Duration = Duration::from_millis(20);
/// Attempts of the guard, which cannot look whether they were enough: 3 s. When it begins, a helper
/// process of the killed owner may still be within its last batch, for a while on a busy machine.
const GUARD_ROUNDS: Rounds = Rounds { count: 30, pause: Duration::from_millis(100) };

/// Memory of a process that can be made huge and split again, and memory that cannot.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Movable {
    /// Regions of private memory on base pages, filled enough, that no other process shares.
    pub regions: Vec<HugePage>,
    /// All private memory that is present.
    pub present: Bytes,
    /// Part of `present` that is huge already, made so by the program or the kernel.
    pub huge: Bytes,
    /// Memory on base pages that the program has excluded (MADV_NOHUGEPAGE), locked or watches, or
    /// that is a device's. Locked memory cannot be split again.
    pub excluded: Bytes,
    /// Regions left out because another process shares pages of them since a fork.
    pub forked: u64,
    /// Regions left out because they lie on folios of 16 KiB to 1 MiB (mTHP): a split would leave
    /// them on base pages.
    pub on_larger_folios: u64,
}

impl Movable {
    /// Returns the bytes of the regions.
    pub fn bytes(&self) -> Bytes {
        HugeCount(self.regions.len() as u64).bytes()
    }
}

/// Looks up the memory of `pid` that can be made huge and split again. Such regions have at least
/// `least_present` (1 to 512) of their base pages present. Changes nothing.
pub fn movable(root: &KernelRoot, pid: Pid, least_present: u16) -> Result<Movable, RemoteError> {
    let failed = |error| refusal(root, pid, error);
    let mut found = Movable::default();
    let mut tables = PageTables::open(root, pid).map_err(failed)?;
    let mut regions = Vec::new();
    for mapping in &read_smaps(root, pid).map_err(failed)? {
        let backing = mapping.backing();
        if !mapping.is_heap_like() || backing.total() == Bytes::ZERO {
            continue;
        }
        found.present += backing.total();
        found.huge += backing.huge();
        let flags = mapping.flags();
        if flags.no_huge || flags.locked || flags.userfault || flags.device {
            found.excluded += backing.base;
            continue;
        }
        if mapping.kernel_page_size != PageSize::BASE || backing.base == Bytes::ZERO {
            continue;
        }
        let of_mapping = tables.regions_in(mapping).map_err(failed)?;
        let fits =
            |it: &&megapage_kernel::pagemap::Region| it.huge != Some(true) && it.present >= least_present;
        regions.extend(of_mapping.iter().filter(fits).map(|it| it.page));
    }
    let (own, forked) = part_shared(root, pid, regions)?;
    found.forked = forked.len() as u64;
    let larger = on_larger_folios(root, pid, &own).map_err(failed)?.unwrap_or_else(|| vec![false; own.len()]);
    found.on_larger_folios = larger.iter().filter(|larger| **larger).count() as u64;
    found.regions =
        own.into_iter().zip(larger).filter(|(_, larger)| !larger).map(|(range, _)| range).collect();
    Ok(found)
}

/// Regions that are made huge. Dropping it splits them. If megapage ends in any other way, a guard
/// process splits them.
#[derive(Debug)]
pub struct Reversible {
    root: KernelRoot,
    process: ProcessId,
    regions: Vec<HugePage>,
    bounds: Bounds,
    promoted: u64,
    is_huge: bool,
    promotions: Promotions,
    guard: Option<Guard>,
}

/// Outcome of undoing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Undone {
    /// Regions that are still huge.
    pub left: u64,
    /// Regions that were huge before.
    pub huge_before: u64,
    /// Bytes of zeros that the kernel has freed: a split maps base pages of zeros to the one shared
    /// page of zeros (Linux 6.12).
    pub freed_bytes: u64,
    /// Processor time of the calls: the process may have waited that long for its memory.
    pub busy: Duration,
}

impl Reversible {
    /// Returns `regions` of `process`, which are on base pages, under a guard that splits them if
    /// megapage is killed.
    ///
    /// # Errors
    /// One line: the process has ended, demotion is not possible ([`demote::check`]), or no guard
    /// could be started.
    pub fn guarded(
        root: &KernelRoot,
        process: ProcessId,
        regions: Vec<HugePage>,
        bounds: Bounds,
    ) -> Result<Reversible, String> {
        let pid = process.pid;
        demote::check(root, pid).map_err(|error| error.to_string())?;
        let pidfd = spawn::open_pidfd(pid).map_err(|error| format!("process {pid}: {error}"))?;
        let first_page = |page: &HugePage| VirtRange::new(page.start(), page.start() + BASE_PAGE as u64);
        let pages: Vec<VirtRange> = regions.iter().filter_map(first_page).collect();
        let guard = Guard::of_huge_pages(pidfd.as_fd(), &pages, GUARD_ROUNDS)
            .map_err(|error| format!("the guard that undoes it could not be started: {error}"))?;
        Ok(Reversible {
            root: root.clone(),
            process,
            regions,
            bounds,
            promoted: 0,
            is_huge: false,
            promotions: Promotions::default(),
            guard: Some(guard),
        })
    }

    /// Returns the number of regions that are to be huge.
    pub fn count(&self) -> u64 {
        self.regions.len() as u64
    }

    /// Returns the most regions that a promotion made huge.
    pub fn promoted(&self) -> u64 {
        self.promoted
    }

    /// Makes the regions huge. Returns the outcome, with how many are; `None` if they were made
    /// huge already.
    ///
    /// # Errors
    /// [`RemoteError::Gone`] if the process has ended or executed another program.
    pub fn promote(&mut self) -> Result<Option<PromoteOutcome>, RemoteError> {
        if self.is_huge {
            return Ok(None);
        }
        if !self.is_there() {
            return Err(RemoteError::Gone(self.process.pid));
        }
        // From here on regions may be huge, whatever the answer.
        self.is_huge = true;
        let promotion =
            Promotion { process: self.process, regions: self.regions.clone(), bounds: self.bounds };
        let mut outcome = promotion.apply_patiently(&self.root, &mut self.promotions)?;
        for _ in 1..ATTEMPTS {
            // If memory is short, another attempt would take it from others.
            let is_short = outcome.no_memory > 0 || outcome.shared > 0;
            if outcome.gone || is_short || 10 * outcome.obtained_bytes >= 9 * outcome.asked_bytes {
                break;
            }
            std::thread::sleep(PROMOTE_PAUSE);
            let again = promotion.apply_patiently(&self.root, &mut self.promotions)?;
            // All regions were asked for again: the last attempt's result counts for each.
            outcome = PromoteOutcome {
                calls: outcome.calls + again.calls,
                elapsed_ns: outcome.elapsed_ns + again.elapsed_ns,
                busy_ns: outcome.busy_ns + again.busy_ns,
                ..again
            };
        }
        if outcome.gone {
            return Err(RemoteError::Gone(self.process.pid));
        }
        self.promoted = self.promoted.max(outcome.obtained_bytes / HUGE_2M as u64);
        Ok(Some(outcome))
    }

    /// Returns true if it is still the same process, and runs the same program.
    pub fn is_there(&self) -> bool {
        let id = self.process;
        read_stat(&self.root, id.pid).is_ok_and(|stat| {
            !stat.is_zombie() && (stat.start_ticks, stat.start_stack) == (id.start_ticks, id.start_stack)
        })
    }

    /// Splits those of the regions that are huge. Regions that no longer exist are not huge, and
    /// those of another program are not touched.
    pub fn undo(&mut self) -> Undone {
        let mut undone = Undone::default();
        if !self.is_huge {
            return undone;
        }
        undone.left = self.count();
        for attempt in 0..UNDO_ATTEMPTS {
            if !self.is_there() {
                undone.left = 0;
                break;
            }
            let demotion =
                Demotion { process: self.process, regions: self.regions.clone(), bounds: self.bounds };
            match demotion.apply(&self.root, &mut self.promotions) {
                Ok(outcome) if outcome.gone => undone.left = 0,
                Ok(outcome) => {
                    undone.busy += Duration::from_nanos(outcome.busy_ns);
                    undone.left = outcome.huge_before.saturating_sub(outcome.demoted);
                    undone.freed_bytes += outcome.freed_bytes;
                    if attempt == 0 {
                        undone.huge_before = outcome.huge_before;
                    }
                }
                Err(_) => {}
            }
            if undone.left == 0 {
                break;
            }
            std::thread::sleep(UNDO_PAUSE);
        }
        self.is_huge = undone.left > 0;
        undone
    }

    /// Keeps the regions as they are now, huge ones huge.
    pub fn keep(mut self) {
        self.is_huge = false;
        self.release();
    }

    fn release(&mut self) {
        if let Some(guard) = self.guard.take() {
            // A guard that has been killed had nothing to do.
            let _ = guard.release();
        }
    }
}

impl Drop for Reversible {
    fn drop(&mut self) {
        // If regions are left, the guard tries once more when it is dropped.
        if self.undo().left == 0 {
            self.release();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_testing::{is_root, skip};
    use std::io::Read;
    use std::process::{Command, Stdio};

    const BOUNDS: Bounds = Bounds { batch: 16, time: Duration::from_secs(2), pause_percent: 0 };

    fn id(root: &KernelRoot, pid: Pid) -> ProcessId {
        crate::remote::identify(root, pid).unwrap()
    }

    #[test]
    fn another_program_under_the_same_number_is_not_touched() {
        if !is_root() {
            return skip("needs CAP_SYS_NICE to split another process's huge pages");
        }
        let root = KernelRoot::live();
        // The shell waits for a line, then becomes another program.
        let mut child = Command::new("sh")
            .args(["-c", "echo ready; read line; exec sleep 60"])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        child.stdout.take().unwrap().read_exact(&mut [0; 6]).unwrap();
        let pid = Pid(child.id() as i32);
        let before = id(&root, pid);
        if before.start_stack == 0 {
            child.kill().unwrap();
            child.wait().unwrap();
            return skip("the kernel does not show where a stack starts");
        }
        let mut part = Reversible::guarded(&root, before, Vec::new(), BOUNDS).unwrap();
        assert!(part.is_there());
        part.is_huge = true;
        drop(child.stdin.take());
        while id(&root, pid) == before {
            std::thread::yield_now();
        }
        assert!(!part.is_there());
        assert_eq!(part.undo().left, 0, "nothing of it is left");
        assert!(matches!(part.promote(), Err(RemoteError::Gone(_))));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn the_guard_tries_longer_than_queues_take() {
        let Rounds { count, pause } = GUARD_ROUNDS;
        assert!(count >= UNDO_ATTEMPTS && pause >= UNDO_PAUSE);
    }
}
