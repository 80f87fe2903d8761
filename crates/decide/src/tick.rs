//! One step, from the view of a policy: the snapshot, and the only way to request actions.

use crate::objects::Objects;
use crate::promotions::{Kind, Open, Promotions, is_allowed};
use crate::{Action, Asked, ModelAction, Reason, fragmentation};
use megapage_snapshot::{Leaf, Process, ProcessId, Region, Snapshot};
use megapage_units::{BASE_PAGE, HUGE_2M, HugePage, PageSize, VirtRange};
use std::collections::BTreeMap;
use std::time::Duration;

/// Answer to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Answer {
    /// The request is among the actions.
    Accepted,
    /// A guard forbids the request, for now or permanently.
    Refused,
    /// The budget of this step is used up: it accepts nothing more of this kind.
    Spent,
}

/// One step of a policy.
#[derive(Debug)]
pub struct Tick<'a> {
    now: Duration,
    elapsed: Duration,
    snapshot: &'a Snapshot,
    processes: Vec<&'a Process>,
    /// Extent to which each process may be changed.
    open: BTreeMap<ProcessId, Open>,
    objects: Objects,
    promotions: &'a mut Promotions,
    untried: Vec<Action>,
    /// True if the machine is a modelled one.
    is_model: bool,
    /// True if the policy asked a running machine, which cannot do it, to zero blocks ahead.
    pub(crate) lacked_zeroing: bool,
    pub(crate) asked: Vec<Asked>,
}

impl<'a> Tick<'a> {
    pub(crate) fn new(
        now: Duration,
        elapsed: Duration,
        snapshot: &'a Snapshot,
        promotions: &'a mut Promotions,
        untried: Vec<Action>,
        is_model: bool,
    ) -> Tick<'a> {
        let observed = promotions.observe(now, snapshot);
        Tick {
            now,
            elapsed,
            snapshot,
            open: observed.iter().map(|(process, open)| (process.id, *open)).collect(),
            objects: Objects::new(
                observed.iter().filter(|(_, open)| *open >= Open::Shared).map(|(process, _)| *process),
            ),
            processes: observed.into_iter().map(|(process, _)| process).collect(),
            promotions,
            untried,
            is_model,
            lacked_zeroing: false,
            asked: Vec::new(),
        }
    }

    /// Returns the time, on the snapshot's clock.
    pub fn now(&self) -> Duration {
        self.now
    }

    /// Returns the time since the step before; zero at the first step.
    pub fn elapsed(&self) -> Duration {
        self.elapsed
    }

    /// Returns the whole snapshot.
    pub fn snapshot(&self) -> &'a Snapshot {
        self.snapshot
    }

    /// Returns the processes to decide about. Their regions are ascending, with at most 512 pages
    /// present.
    pub fn processes(&self) -> Vec<&'a Process> {
        self.processes.clone()
    }

    /// Returns true if this process is one of [`Tick::processes`].
    pub fn knows(&self, id: ProcessId) -> bool {
        self.open.contains_key(&id)
    }

    /// Returns the share of the machine's memory in use, 0 to 1.
    pub fn in_use(&self) -> f64 {
        self.promotions.in_use()
    }

    /// Returns the changes that the step before requested and that were not tried, in the order of
    /// the requests.
    pub fn untried(&self) -> &[Action] {
        &self.untried
    }

    /// Returns the places of the promotions among the untried changes.
    pub fn untried_promotions(&self) -> Vec<(ProcessId, HugePage)> {
        let promotions = self.untried.iter().filter(|action| matches!(action, Action::Promote { .. }));
        promotions.filter_map(Action::place).collect()
    }

    /// Returns the share of the free memory that is unusable for 2 MiB pages, 0 to 1.
    pub fn fragmentation(&self) -> f64 {
        fragmentation(&self.snapshot.machine)
    }

    /// Returns true if a region of private memory may be sampled, promoted or demoted, now or
    /// later.
    pub fn is_allowed(&self, process: &Process, region: &Region) -> bool {
        is_allowed(process, region)
    }

    /// Returns true if a region may be promoted, now or later. It is private memory, or shared
    /// memory that this process promotes on behalf of all processes that map it.
    pub fn is_promotable(&self, process: &Process, region: &Region) -> bool {
        is_allowed(process, region) || self.objects.is_chosen(process, region)
    }

    /// Returns true if a region of base pages could become huge now, budgets aside.
    pub fn may_promote(&self, process: &Process, region: &Region) -> bool {
        self.may_promote_any(process)
            && self.is_candidate(process, region)
            && self.promotions.may_promote(self.now, process.id, region)
    }

    /// Returns the regions of a process that could become huge now, budgets aside, with their
    /// places among its regions. These are the regions that [`Tick::may_promote`] allows.
    pub fn promotable<'p>(&self, process: &'p Process) -> impl Iterator<Item = (usize, &'p Region)> {
        let any = self.may_promote_any(process).then(|| self.promotions.promotable(self.now, process));
        any.into_iter().flatten().filter(|(_, region)| self.is_candidate(process, region))
    }

    /// Returns true if a huge page could be split now, budgets aside.
    pub fn may_demote(&self, process: &Process, region: &Region, reason: Reason) -> bool {
        region.leaf == Leaf::Huge2m
            && self.is_open(process)
            && is_allowed(process, region)
            && self.promotions.may_demote(self.now, process.id, region.page, reason == Reason::Bloat)
    }

    /// Requests pages of `size`, at most 2 MiB, for a region of base pages.
    pub fn promote(&mut self, process: &Process, region: &Region, size: PageSize, reason: Reason) -> Answer {
        if size <= PageSize::BASE
            || size > PageSize::HUGE_2M
            || !self.promotions.can(self.now, Kind::Promote(size.bytes().0))
            || size < PageSize::HUGE_2M && self.promotions.has_small(process.id, region.page, size.bytes().0)
            || !self.may_promote(process, region)
        {
            return Answer::Refused;
        }
        // Collapses blocks of a smaller size if at least half of their pages are present.
        let pages = if size == PageSize::HUGE_2M {
            HUGE_2M / BASE_PAGE
        } else {
            (2 * usize::from(region.present)).min(HUGE_2M / BASE_PAGE)
        };
        let bytes = (pages * BASE_PAGE) as u64;
        self.ask(Action::Promote { process: process.id, region: region.page, size, reason }, bytes, 0)
    }

    /// Requests the split of a huge page.
    pub fn demote(&mut self, process: &Process, region: &Region, reason: Reason) -> Answer {
        if !self.promotions.can(self.now, Kind::Demote) || !self.may_demote(process, region, reason) {
            return Answer::Refused;
        }
        self.ask(Action::Demote { process: process.id, region: region.page, reason }, 0, 0)
    }

    /// Requests the split of a huge page and the release of its zero-filled part.
    pub fn recover(&mut self, process: &Process, region: &Region, reason: Reason) -> Answer {
        if !self.promotions.can(self.now, Kind::Recover) || !self.may_demote(process, region, reason) {
            return Answer::Refused;
        }
        let action = Action::Recover { process: process.id, region: region.page, reason };
        self.ask(action, 0, HugePage::SIZE)
    }

    /// Requests a sample of the allowed regions of a process that `wanted` selects. Merges
    /// neighbours into one range.
    pub fn sample(
        &mut self,
        process: &Process,
        window: Duration,
        reason: Reason,
        wanted: impl Fn(&Region) -> bool,
    ) -> Answer {
        let known = self.knows(process.id);
        if !self.is_model || !self.promotions.can(self.now, Kind::Sample) || !known {
            return Answer::Refused;
        }
        let wanted = process.regions.iter().filter(|region| is_allowed(process, region) && wanted(region));
        let mut ranges = VirtRange::joined(wanted.map(Region::range));
        ranges.truncate(self.promotions.limits().sample_ranges);
        if ranges.is_empty() {
            return Answer::Refused;
        }
        self.ask_model(ModelAction::Sample { process: process.id, ranges, window, reason }, 0)
    }

    /// Requests a count of the zeros in these huge regions, most important first, as far as the
    /// budget allows. Returns the number of regions accepted.
    pub fn zero_scan(&mut self, process: &Process, regions: &[HugePage], reason: Reason) -> usize {
        if !self.promotions.can(self.now, Kind::ZeroScan) || !self.open.contains_key(&process.id) {
            return 0;
        }
        let (_, left) = self.promotions.left();
        let mut accepted: Vec<HugePage> = regions
            .iter()
            .copied()
            .filter(|start| {
                crate::region_at(process, *start)
                    .is_some_and(|region| region.leaf == Leaf::Huge2m && is_allowed(process, region))
            })
            .take(usize::try_from(left).unwrap_or(usize::MAX))
            .collect();
        accepted.sort_unstable();
        accepted.dedup();
        let count = accepted.len();
        if count > 0 {
            let action = Action::ZeroScan { process: process.id, regions: accepted, reason };
            let _ = self.ask(action, 0, count as u64 * HugePage::SIZE);
        }
        count
    }

    /// Asks a modelled machine to zero free 2 MiB blocks: as many as the budget allows, at most
    /// `blocks`. On a running machine it only notes that the policy wanted them.
    pub fn pre_zero(&mut self, blocks: u64, reason: Reason) -> Answer {
        self.lacked_zeroing |= !self.is_model && blocks > 0;
        if !self.is_model || !self.promotions.can(self.now, Kind::PreZero) || blocks == 0 {
            return Answer::Refused;
        }
        let (left, _) = self.promotions.left();
        let blocks = blocks.min(left);
        if blocks == 0 {
            return Answer::Spent;
        }
        self.ask_model(ModelAction::PreZero { blocks, reason }, blocks * HugePage::SIZE)
    }

    fn is_open(&self, process: &Process) -> bool {
        self.open.get(&process.id) == Some(&Open::All)
    }

    fn may_promote_any(&self, process: &Process) -> bool {
        let open = self.open.get(&process.id).is_some_and(|open| *open >= Open::Shared);
        !process.thp_disabled && open && self.promotions.has_memory(self.now)
    }

    /// Returns true if a region is of base pages and could be huge.
    fn is_candidate(&self, process: &Process, region: &Region) -> bool {
        region.leaf == Leaf::Base
            && region.present > 0
            && (self.is_open(process) && is_allowed(process, region)
                || self.objects.is_chosen(process, region))
    }

    fn ask(&mut self, action: Action, moved: u64, scanned: u64) -> Answer {
        let answer = self.promotions.accept(action.place(), moved, scanned);
        if answer == Answer::Accepted {
            self.asked.push(Asked::Action(action));
        }
        answer
    }

    fn ask_model(&mut self, action: ModelAction, moved: u64) -> Answer {
        let answer = self.promotions.accept(None, moved, 0);
        if answer == Answer::Accepted {
            self.asked.push(Asked::Model(action));
        }
        answer
    }
}
