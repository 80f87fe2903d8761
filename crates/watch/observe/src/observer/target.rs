//! The state of one process, and the steps of its samples.

mod rest;

use super::Round;
use super::budget::{Account, Candidate, Terms};
use super::candidates::{candidate, is_candidate, leave_out_shared, maps_shared, merge};
use super::cycle::Cycle;
use super::history::{History, accessed_entries};
use super::outstanding::Outstanding;
use super::part::{PartialWindow, accessed_by_part, keep_part, part_bits, profiles, stand_for_all};
use crate::mappings::Details;
use crate::process::gone;
use crate::tracker::{RegionBits, TrackError, Tracker};
use megapage_kernel::{KernelRoot, cpu_time_of};
use megapage_snapshot::{
    Leaf, Missed, MissedWhy, Process, ProcessId, ProcessSampling, Region, TranslationCost,
};
use megapage_units::{BASE_PAGE, Bytes, HugePage, Pid, VirtRange};
use rest::Waiting;
use std::collections::BTreeMap;
use std::time::Duration;

/// Pause of sampling a process after the kernel has refused it.
const REFUSED_PAUSE: Duration = Duration::from_secs(60);
/// Least time between two samples for promotion of a process that is nearly all on huge pages.
const HUGE_PAUSE: Duration = Duration::from_secs(60);
/// Least ratio of huge to base pages, in memory, of such a process.
const HUGE_REST: u64 = 32;
/// Divisor of the window for the first sample of a process for promotion. Hot pages show soon. A
/// window in which every page is accessed says nothing about the rate.
const FIRST_WINDOW: u32 = 16;
/// Divisor of that window for an early look at the accessed pages: a quarter through.
const EARLY: u32 = 4;
/// Least processor time of a process by the early look for a report of rates. The kernel counts it
/// in steps of up to 10 ms, and one step may have been before the clearing.
const LEAST_WORK: Duration = Duration::from_millis(20);

/// One in this many samples is whole while parts are taken only to avoid a burst.
const WHOLE_EACH: u64 = 16;
/// Growth within two samples from which a process is filling its memory: one entry in this many...
const FILLING: u64 = 8;
/// ...or this many entries: 256 MiB of base pages.
const FILLING_MOST: u64 = 1 << 16;

/// Means for a step of a sample.
pub(super) struct Pass<'a> {
    pub(super) tracker: &'a mut dyn Tracker,
    pub(super) now: &'a dyn Fn() -> Duration,
    pub(super) root: &'a KernelRoot,
    /// Processor time of the process before it was read in this pass; `None`: not known.
    pub(super) cpu: Option<Duration>,
    /// Outstanding regions as this pass has read them with the snapshot, and the time before that
    /// reading; `None`: it has not.
    pub(super) seen: Option<(Duration, Vec<RegionBits>)>,
}

impl Pass<'_> {
    /// Reads regions (ascending) that are outstanding.
    fn read(&mut self, pid: Pid, pages: &[HugePage]) -> Result<Vec<RegionBits>, TrackError> {
        let Some((_, seen)) = &self.seen else { return self.tracker.read(pid, &merge(pages)) };
        let asked = |bits: &&RegionBits| pages.binary_search(&bits.page).is_ok();
        Ok(seen.iter().filter(asked).cloned().collect())
    }
}

/// Reading of all outstanding regions.
#[derive(Default)]
struct Settled {
    /// Results as far as they count.
    found: Vec<RegionBits>,
    /// Results as read.
    raw: Vec<RegionBits>,
    /// Memory that others share.
    shared: Bytes,
}

/// State of one process.
#[derive(Debug)]
pub(super) struct Target {
    pub(super) id: ProcessId,
    pub(super) details: Details,
    pub(super) history: History,
    /// Region at which the last zero scan ended.
    pub(super) zero_cursor: HugePage,
    /// Regions to scan for zeros after the sample under way.
    zero_wanted: Vec<HugePage>,
    pub(super) translation: Option<TranslationCost>,
    /// Description of its sampling, as of the last sample.
    shown: Option<ProcessSampling>,
    /// Reason why it cannot be sampled, and the time of the next attempt.
    pub(super) refused: Option<(Missed, Duration)>,
    /// Time at which the next step of sampling is due.
    pub(super) due: Option<Duration>,
    account: Option<Account>,
    window: Duration,
    /// See [`super::Options::promotes`].
    promotes: bool,
    /// True if no further call follows: a sample under way is read at the end of its window in any
    /// case.
    once: bool,
    cycle: Option<Cycle>,
    /// True if a sample was read.
    was_read: bool,
    /// Sample whose clearing waits for the process to run.
    waiting: Option<Waiting>,
    /// Processor time of the process at the start of the last pass over it.
    cpu_before: Option<Duration>,
    /// Cleared regions that were not accessed whole yet: their further accesses are still to be
    /// charged.
    outstanding: BTreeMap<HugePage, Outstanding>,
    resident: Bytes,
    /// Entries of all candidates: at the last sample but one, at the last sample, and now.
    entries: [u64; 3],
    /// Samples in part since the last whole one.
    parts: u64,
}

impl Target {
    /// Creates the state of a process. `terms` are those of sampling; `None`: no sampling. `rate`
    /// is its processor seconds per second so far; `lived` is all its processor time.
    pub(super) fn new(id: ProcessId, terms: Option<Terms>, rate: f64, lived: Duration) -> Target {
        Target {
            id,
            details: Details::default(),
            history: History::default(),
            zero_cursor: HugePage::nth(0),
            zero_wanted: Vec::new(),
            translation: None,
            shown: None,
            refused: None,
            due: None,
            window: terms.map_or(Duration::ZERO, |terms| terms.window),
            promotes: terms.is_some_and(|terms| terms.promotes),
            account: terms.map(|terms| Account::new(terms, rate, lived)),
            once: false,
            cycle: None,
            was_read: false,
            waiting: None,
            cpu_before: None,
            outstanding: BTreeMap::new(),
            resident: Bytes::ZERO,
            entries: [0; 3],
            parts: 0,
        }
    }

    /// Returns the time at which a started sample must be read; `None` if none is under way.
    pub(super) fn read_due(&self) -> Option<Duration> {
        let cycle = self.cycle.as_ref().filter(|cycle| !cycle.read);
        let waiting = self.waiting.as_ref().map(|waiting| waiting.next);
        waiting.or(cycle.map(|cycle| cycle.cleared + cycle.window))
    }

    /// Returns true if bits of it were cleared and are still to be read.
    pub(super) fn is_cleared(&self) -> bool {
        self.cycle.as_ref().is_some_and(|cycle| !cycle.read)
    }

    /// Returns true if a sample of it was cleared and read.
    pub(super) fn is_sampled(&self) -> bool {
        self.was_read
    }

    /// Returns true if samples are for promotion and no bits of the process were cleared yet.
    fn is_first(&self) -> bool {
        self.promotes && self.cycle.is_none()
    }

    /// Returns true if a sample of these regions would show little, and the last one is recent.
    fn is_settled(&self, now: Duration, regions: &[&Region]) -> bool {
        let last = self.cycle.as_ref().filter(|_| self.promotes).map(|cycle| cycle.cleared);
        let pages = |leaf: Leaf| -> u64 {
            let of_leaf = regions.iter().filter(|region| region.leaf == leaf);
            of_leaf.map(|region| u64::from(region.present)).sum()
        };
        last.is_some_and(|last| now < last + HUGE_PAUSE)
            && pages(Leaf::Base) * HUGE_REST <= pages(Leaf::Huge2m)
    }

    /// Gives up the sample under way, because its process is gone or cannot be read.
    pub(super) fn abandon(&mut self) {
        self.cycle = None;
        self.waiting = None;
        self.outstanding.clear();
        self.due = None;
    }

    /// Returns true if the bits of this region were cleared and are still to be read.
    pub(super) fn is_being_sampled(&self, page: HugePage) -> bool {
        let cycle = self.cycle.as_ref().filter(|cycle| !cycle.read);
        cycle.is_some_and(|cycle| cycle.pages.binary_search(&page).is_ok())
    }

    /// Leaves these regions out of the sample under way, because another process has accessed them.
    pub(super) fn leave_out(&mut self, pages: &[HugePage]) {
        if let Some(cycle) = self.cycle.as_mut().filter(|cycle| !cycle.read) {
            let left_out: std::collections::BTreeSet<&HugePage> = pages.iter().collect();
            cycle.pages.retain(|page| !left_out.contains(page));
        }
    }

    /// Requests a zero scan of these regions after the sample under way.
    pub(super) fn want_zeros(&mut self, pages: &[HugePage]) {
        // Regions that were not scanned must be requested again.
        self.zero_wanted = pages.to_vec();
    }

    /// Takes the regions that wait for a zero scan, unless a sample is under way.
    pub(super) fn wanted_zeros(&mut self) -> Vec<HugePage> {
        if self.is_cleared() { Vec::new() } else { std::mem::take(&mut self.zero_wanted) }
    }

    /// Makes the next sample start at once: see [`Account::hurry`].
    pub(super) fn hurry(&mut self) {
        if let Some(account) = &mut self.account {
            account.hurry();
        }
    }

    /// Prepares for a single sample: its window is at least a quarter of the usual one.
    pub(super) fn only_once(&mut self) {
        self.once = true;
        self.wait_no_longer();
        if let Some(cycle) = &mut self.cycle {
            cycle.window = cycle.window.max(self.window / 4);
        }
    }

    /// Notes that the process has taken `cpu` of processor time so far.
    pub(super) fn earn(&mut self, now: Duration, cpu: Duration) {
        if let Some(account) = &mut self.account {
            account.earn(now, cpu);
        }
    }

    /// Returns the cleared regions of which something is still to be read, as ranges.
    pub(super) fn outstanding(&self) -> Vec<VirtRange> {
        VirtRange::joined(self.outstanding.keys().map(|page| page.range()))
    }

    /// Completes the sample under way if its window is over. Fails if the process has ended.
    pub(super) fn read_if_due(&mut self, pass: &mut Pass<'_>, targets: usize) -> Result<(), Missed> {
        let Some(due) = self.read_due().filter(|due| (pass.now)() >= *due) else { return Ok(()) };
        // A reading that began before the end of the window may lack its last accesses.
        pass.seen = pass.seen.take().filter(|(before, _)| *before >= due);
        if self.waiting.is_some() {
            return self.end_wait(pass, targets);
        }
        match self.wait_for_rates(pass, targets) {
            Ok(true) => return Ok(()),
            Ok(false) => {}
            Err(error) => return self.unless_refused((pass.now)(), Err(error)),
        }
        let result = self.read_sample(pass, targets);
        self.unless_refused((pass.now)(), result)
    }

    /// Looks early at the accessed pages, if rates are to be reported. Extends the window while the
    /// process has not run enough. Returns true if the window continues.
    fn wait_for_rates(&mut self, pass: &mut Pass<'_>, targets: usize) -> Result<bool, TrackError> {
        let (pid, most) = (self.id.pid, self.window);
        let Some(cycle) = self.cycle.as_mut().filter(|_| !self.once) else { return Ok(false) };
        let Some(worked) = cycle.worked(pid).filter(|_| cycle.window < most) else { return Ok(false) };
        let begin = (pass.now)();
        let clearing = cycle.done.saturating_sub(cycle.cleared);
        let passed = begin.saturating_sub(cycle.done);
        let wanted = cycle.early.as_ref().map_or(LEAST_WORK, |early| early.worked * (EARLY - 1));
        if worked < wanted {
            // A process that got no processor has not accessed anything yet.
            cycle.window = (clearing + passed + most / FIRST_WINDOW / EARLY).min(most);
            return Ok(true);
        }
        if cycle.early.is_some() {
            return Ok(false);
        }
        let read = pass.read(pid, &cycle.pages)?;
        cycle.early = Some(PartialWindow::new(&read, cycle.in_part, worked));
        cycle.window = (clearing + passed * EARLY).min(most);
        let end = (pass.now)();
        if let Some(account) = &mut self.account {
            account.worked(end, end.saturating_sub(begin), targets);
        }
        Ok(true)
    }

    fn read_sample(&mut self, pass: &mut Pass<'_>, targets: usize) -> Result<(), TrackError> {
        let Settled { mut found, shared, .. } = self.settle(pass, targets)?;
        let (Some(cycle), Some(account)) = (&mut self.cycle, &self.account) else { return Ok(()) };
        let end = (pass.now)();
        let worked = cycle.worked(self.id.pid);
        let (mut rated, mut untouched, mut present) = (Vec::new(), 0, 0);
        for bits in &mut found {
            let Ok(place) = cycle.pages.binary_search(&bits.page) else { continue };
            if cycle.in_part {
                bits.accessed = accessed_by_part(bits);
            }
            let Some(accessed) = bits.accessed else { continue };
            self.history.note(bits.page, accessed, end);
            match worked {
                Some(worked) if worked >= LEAST_WORK && !bits.leaf.is_huge() => {
                    present += u64::from(bits.present);
                    match accessed {
                        0 => untouched += 1,
                        _ => rated.push((&*bits, worked + cycle.worked_before(place))),
                    }
                }
                Some(_) => {}
                None => self.history.confirm_rate(bits.page, accessed, bits.present),
            }
        }
        let sampled = present as f64 * BASE_PAGE as f64 / (self.resident.0 as f64).max(1.0);
        for (page, profile) in profiles(&rated, cycle.in_part, untouched, sampled, cycle.early.as_ref()) {
            self.history.of(page).rate = Some(profile);
        }
        cycle.read = true;
        self.was_read = true;
        self.shown = Some(ProcessSampling {
            window: end.saturating_sub(cycle.cleared),
            period: Some(account.period()),
            sampled: end,
            ranges: cycle.ranges.len(),
            bytes: cycle.ranges.iter().map(|range| range.len()).sum(),
            shared,
            cost: account.spent(),
            slowdown: account.slowdown(),
            samples: self.shown.as_ref().map_or(0, |shown| shown.samples) + 1,
        });
        Ok(())
    }

    /// Reads all regions that were cleared and not accessed whole yet, and charges new accesses.
    /// The first time after a clearing, the results leave out shared pages and pages that were not
    /// cleared.
    fn settle(&mut self, pass: &mut Pass<'_>, targets: usize) -> Result<Settled, TrackError> {
        let (Some(cycle), Some(account)) = (&mut self.cycle, &mut self.account) else {
            return Ok(Settled::default());
        };
        let begin = (pass.now)();
        let pages: Vec<HugePage> = self.outstanding.keys().copied().collect();
        let mut found = pass.read(self.id.pid, &pages)?;
        let count =
            |bits: &RegionBits| self.outstanding.get(&bits.page).unwrap_or(&Outstanding::WHOLE).count(bits);
        let read: Vec<(u64, u64)> = found.iter().map(count).collect();
        let mut shared = Bytes::ZERO;
        let raw = found.clone();
        if !cycle.read {
            if cycle.in_part {
                found.iter_mut().for_each(keep_part);
            }
            shared = leave_out_shared(pass.root, self.id, &mut found, &cycle.shared)?;
        }
        let (mut fresh, mut still) = (0, BTreeMap::new());
        for (bits, (read, most)) in found.iter().zip(read) {
            let Some(&Outstanding { pages, charged }) = self.outstanding.get(&bits.page) else { continue };
            let is_shared = !cycle.read && cycle.shared.binary_search(&bits.page).is_ok();
            // A page that others share kept its bit: it was not cleared, and costs nothing.
            let counted = if is_shared && bits.accessed.is_none() { 0 } else { accessed_entries(bits) };
            let new = if is_shared { counted } else { read.saturating_sub(charged) };
            fresh += new;
            if cycle.pages.binary_search(&bits.page).is_ok() {
                cycle.by_now += new;
            }
            if read < most {
                still.insert(bits.page, Outstanding { pages, charged: read.max(charged) });
            }
        }
        self.outstanding = still;
        if !cycle.read {
            cycle.in_window = cycle.by_now;
        }
        let end = (pass.now)();
        account.charge(fresh);
        account.learn(end.saturating_sub(cycle.cleared), cycle.entries, cycle.in_window, cycle.by_now);
        account.worked(end, end.saturating_sub(begin), targets);
        Ok(Settled { found, raw, shared })
    }

    /// Returns the description of its sampling, with the cost so far.
    pub(super) fn shown(&self) -> Option<ProcessSampling> {
        let mut shown = self.shown.clone()?;
        if let Some(account) = &self.account {
            shown.period = Some(account.period());
            shown.cost = account.spent();
            shown.slowdown = account.slowdown();
        }
        Some(shown)
    }

    /// Starts a sample if none is under way and the account allows it. `candidates` is true for
    /// each mapping that may be sampled.
    pub(super) fn start_if_due(
        &mut self,
        pass: &mut Pass<'_>,
        process: &Process,
        candidates: &[bool],
        shares: bool,
        round: &Round<'_>,
    ) -> Result<(), Missed> {
        self.resident = process.rss;
        if let Some(due) = self.read_due() {
            self.due = Some(due);
            return Ok(());
        }
        let now = (pass.now)();
        if self.refused.as_ref().is_some_and(|(_, until)| now < *until) {
            return Ok(());
        }
        let regions: Vec<&Region> =
            process.regions.iter().filter(|region| is_candidate(region, candidates)).collect();
        let mut list: Vec<Candidate> = regions.iter().map(|region| candidate(region)).collect();
        self.due = None;
        let Some(account) = &self.account else { return Ok(()) };
        let mut in_part = false;
        let expensive = account.is_too_expensive(&list);
        let [then, _, entries] = &mut self.entries;
        *entries = list.iter().map(|candidate| u64::from(candidate.entries)).sum();
        let filling = *then > 0 && entries.saturating_sub(*then) > FILLING_MOST.min(*then / FILLING);
        if pass.tracker.clears_parts() && (expensive || account.is_burst(&list, filling)) {
            let parts = super::part::in_part(&list, &regions);
            // Now and then whole regions are sampled: parts do not show small hot spots beside
            // them.
            let whole = self.parts >= WHOLE_EACH - 1;
            in_part =
                if expensive { !parts.is_empty() } else { (filling || !whole) && stand_for_all(&regions) };
            list = if in_part { parts } else { list };
        }
        let idle = self.may_wait(pass);
        let may_wait = idle.is_some() && account.may_wait(now) && !list.is_empty();
        let may_start = may_wait || account.may_start(now, &list);
        // One sample of a process that does not run shows everything.
        let is_known = self.once && idle.is_some() && self.shown.is_some();
        if round.start && !self.is_settled(now, &regions) && may_start && !is_known {
            let shared = |region: &&&Region| shares || maps_shared(process, region);
            let shared = match pass.tracker.leaves_shared() {
                true => regions.iter().filter(shared).map(|region| region.page).collect(),
                false => Vec::new(),
            };
            match idle.filter(|_| shared.len() < regions.len()) {
                Some(cpu) => self.wait(now, cpu, list.clone(), in_part, shared),
                None => {
                    let result = self.start(pass, &list, in_part, shared, round.targets);
                    self.unless_refused(now, result)?;
                }
            }
        }
        self.cpu_before = pass.cpu;
        self.due = match (self.read_due(), &self.account) {
            (Some(due), _) => Some(due),
            (None, Some(account)) if !list.is_empty() && self.refused.is_none() => {
                let now = (pass.now)();
                Some(now + account.wait(now, &list))
            }
            _ => None,
        };
        Ok(())
    }

    /// Charges the accesses since the window, and clears again if enough tokens are left.
    fn start(
        &mut self,
        pass: &mut Pass<'_>,
        list: &[Candidate],
        in_part: bool,
        shared: Vec<HugePage>,
        targets: usize,
    ) -> Result<(), TrackError> {
        let before = match &self.cycle {
            Some(_) => self.settle(pass, targets)?.raw,
            None => Vec::new(),
        };
        let bits_of = |page: &HugePage| {
            let at = before.binary_search_by_key(page, |read| read.page).ok()?;
            Some(&before[at]).filter(|read| !read.leaf.is_huge())
        };
        let Some(account) = &mut self.account else { return Ok(()) };
        if !account.can_pay((pass.now)(), list) {
            return Ok(());
        }
        let pages = account.plan(list);
        let ranges = merge(&pages);
        let entries = list
            .iter()
            .filter(|candidate| pages.binary_search(&candidate.page).is_ok())
            .map(|candidate| u64::from(candidate.entries))
            .sum();
        let is_asked = self.is_first() && pass.root.is_live();
        let cpu = if is_asked { cpu_time_of(self.id.pid).ok() } else { None };
        let Some(account) = &mut self.account else { return Ok(()) };
        // The window starts with the clearing: a page may be accessed as soon as its bit is
        // cleared.
        let cleared = (pass.now)();
        match in_part {
            true => pass.tracker.clear_part(self.id.pid, &ranges)?,
            false => {
                // A region that was read without a set bit needs no clearing. An access to it since
                // that reading counts as one of this sample.
                let is_used = |page: &&HugePage| bits_of(page).is_none_or(|bits| bits.accessed != Some(0));
                let used: Vec<HugePage> = pages.iter().filter(is_used).copied().collect();
                if !used.is_empty() {
                    pass.tracker.clear(self.id.pid, &merge(&used))?;
                }
            }
        }
        let end = (pass.now)();
        account.cleared(end);
        account.worked(end, end.saturating_sub(cleared), targets);
        if in_part {
            // Each region needs a flush of the TLB, which is taken to cost as much as one first
            // access.
            account.charge(pages.len() as u64);
        }
        for page in &pages {
            let again = match (in_part, self.outstanding.get(page), bits_of(page)) {
                (false, ..) => Outstanding::WHOLE,
                (true, Some(former), Some(read)) => {
                    former.cleared_again(&part_bits(*page), read.bits.as_ref())
                }
                (true, ..) => Outstanding { pages: Some(part_bits(*page)), charged: 0 },
            };
            self.outstanding.insert(*page, again);
        }
        let cpu = cpu.zip(cpu_time_of(self.id.pid).ok());
        let window = match (self.is_first(), cpu) {
            (true, Some(_)) => end.saturating_sub(cleared) + self.window / FIRST_WINDOW / EARLY,
            (true, None) => self.window / FIRST_WINDOW,
            (false, _) => self.window,
        };
        let window = if self.once { window.max(self.window / 4) } else { window };
        self.entries = [self.entries[1], self.entries[2], self.entries[2]];
        self.parts = if in_part { self.parts + 1 } else { 0 };
        self.cycle = Some(Cycle {
            pages,
            ranges,
            entries,
            shared,
            in_part,
            cleared,
            cpu,
            window,
            done: end,
            ..Cycle::default()
        });
        Ok(())
    }

    /// Handles the result of a step. Returns an error if the process has ended. Any other failure
    /// stops sampling for a while, but not the observation.
    fn unless_refused(&mut self, now: Duration, result: Result<(), TrackError>) -> Result<(), Missed> {
        let pid = self.id.pid;
        match result {
            Ok(()) => {
                self.refused = None;
                Ok(())
            }
            Err(error) if error.why() == MissedWhy::Gone => Err(gone(pid)),
            Err(error) => {
                self.cycle = None;
                self.outstanding.clear();
                self.due = None;
                let what = format!("process {pid} is not sampled: {error}");
                self.refused = Some((Missed { pid, why: error.why(), what }, now + REFUSED_PAUSE));
                Ok(())
            }
        }
    }
}
