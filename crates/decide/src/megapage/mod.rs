//! megapage's policy: the highest gain for each byte first, over all processes, with guaranteed
//! shares.
//!
//! Its rules for cases that the published policies leave open:
//! - A region counts by its loss to TLB misses (rate, access class, measured or estimated cost),
//!   not by coverage alone: see [`gain`].
//! - Its price is the bytes that a promotion copies, and those that it would bind in addition.
//!   These cost more, the fuller memory is.
//! - A promotion must pay for itself while the process lives. A process is expected to go on for as
//!   long as it has run (Harchol-Balter and Downey, "Exploiting process lifetime distributions for
//!   dynamic load balancing", 1997).
//! - The watermarks of short memory move with the pressure: see [`watermarks`].
//! - No process starves: a part of all huge memory is guaranteed by weight, and served out of turn.
//! - Faults are huge if the process fills its huge pages, or if memory is plentiful. Else they are
//!   of a smaller size.

pub mod claims;
mod fill_tracker;
pub mod gain;
mod groups;
mod parameters;
mod recover;
pub mod watermarks;

use crate::pace::Rounds;
use crate::scans::Scans;
use crate::{Action, Answer, Fault, FaultSize, Outcome, Policy, Reason, Tick, region_at};
use claims::{Amounts, weight};
use fill_tracker::FillTracker;
use gain::{Gains, is_sampled_base};
use groups::Groups;
use megapage_snapshot::{CostSource, HugePages, Leaf, PAGES, Process, ProcessId, Region};
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, HugePage, PageSize};
use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::time::Duration;
use watermarks::Watermarks;

pub use parameters::Parameters;

/// State of a process.
#[derive(Clone, Debug, Default)]
struct Account {
    /// Time at which the process was first seen.
    since: Duration,
    /// Processor time and the time when it was read.
    cpu: (Duration, Duration),
    /// Average number of processors in use.
    usage: f64,
    /// Time of the last request for a sample, and the number of regions of base pages then.
    sampled: Option<(Duration, usize)>,
    /// Promotions tried since.
    promoted: u64,
    /// Samples in a row without a later promotion or growth.
    idle: u32,
    fill_tracker: FillTracker,
    rescan: Duration,
    /// True once the gain from its streams was found to reach [`Parameters::least_streaming`]. It
    /// stays true: as regions become huge, less gain is left, but the others are still promoted.
    streams_pay: bool,
}

/// The policy.
#[derive(Clone, Debug)]
pub struct Megapage {
    parameters: Parameters,
    watermarks: Watermarks,
    groups: Groups,
    accounts: BTreeMap<ProcessId, Account>,
    scans: Scans,
    caps: Amounts,
    promotions: Rounds,
    promotions_quick: Rounds,
    zeroings: Rounds,
    /// Promotions tried so far. The count decides which promotions serve a guarantee.
    turn: u64,
    /// Promotions of the last step that need not pay soon.
    patient: BTreeSet<(ProcessId, HugePage)>,
    /// True if the last round was used up while more promotions would have paid soon.
    more: bool,
}

/// A region that could become huge. The best is the greatest; of equals, the lower address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Candidate {
    /// True if the promotion pays for itself...
    pays: bool,
    /// Gain for each byte, weighted.
    score: Score,
    page: Reverse<HugePage>,
    /// ...and soon.
    quick: bool,
}

/// A finite score, in the order of numbers.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Score(f64);

impl Eq for Score {}

impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Score) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Score {
    fn cmp(&self, other: &Score) -> Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// A process that competes for promotions.
struct Competitor<'a> {
    process: &'a Process,
    weight: f64,
    huge: u64,
    /// Huge pages guaranteed to it, as far as it has use for them.
    guaranteed: f64,
    candidates: BinaryHeap<Candidate>,
}

impl Competitor<'_> {
    /// Returns the fulfilled part of the guarantee, 0 to 1.
    fn fulfilled(&self) -> f64 {
        if self.guaranteed <= 0.0 { 1.0 } else { (self.huge as f64 / self.guaranteed).min(1.0) }
    }
}

/// Competitors by rank, the highest first; of equals, the first. A competitor is pushed again when
/// its rank changes.
#[derive(Default)]
struct Order(BinaryHeap<(Score, Reverse<usize>)>);

impl Order {
    fn push(&mut self, at: usize, rank: Option<Score>) {
        self.0.extend(rank.map(|rank| (rank, Reverse(at))));
    }

    /// Returns the first competitor with its present `rank`, and drops former ranks before it.
    fn top(&mut self, rank: impl Fn(usize) -> Option<Score>) -> Option<usize> {
        while let Some((former, Reverse(at))) = self.0.peek() {
            if rank(*at) == Some(*former) {
                return Some(*at);
            }
            self.0.pop();
        }
        None
    }
}

impl Megapage {
    /// Returns the policy with these constants.
    pub fn new(parameters: Parameters) -> Megapage {
        Megapage {
            watermarks: Watermarks::new(parameters.watermarks),
            groups: Groups::new(parameters.watermarks),
            parameters,
            accounts: BTreeMap::new(),
            scans: Scans::default(),
            caps: Amounts::default(),
            promotions: Rounds::default(),
            promotions_quick: Rounds::default(),
            zeroings: Rounds::default(),
            turn: 0,
            patient: BTreeSet::new(),
            more: false,
        }
    }

    /// Updates the accounts of the processes, and requests samples of them.
    fn track(&mut self, tick: &mut Tick<'_>, processes: &[&Process]) {
        self.accounts.retain(|id, _| tick.knows(*id));
        self.scans.retain(|id| tick.knows(*id));
        self.caps = Amounts::of_caps(&self.parameters.claims, processes);
        for process in processes {
            let parameters = &self.parameters;
            let account = self.accounts.entry(process.id).or_insert_with(|| Account {
                since: tick.now(),
                cpu: (process.cpu, tick.now()),
                usage: 1.0,
                rescan: parameters.rescan,
                ..Account::default()
            });
            let (cpu, then) = account.cpu;
            let elapsed = tick.now().saturating_sub(then).as_secs_f64();
            if elapsed > 0.0 {
                let usage = process.cpu.saturating_sub(cpu).as_secs_f64() / elapsed;
                account.usage = 0.5 * account.usage + 0.5 * usage;
                account.cpu = (process.cpu, tick.now());
            }
            account.fill_tracker.observe(tick, process);

            let base = process.regions.iter().filter(|region| region.leaf == Leaf::Base).count();
            let is_due = account.sampled.is_none_or(|(then, had)| {
                // A process that changes, or is being promoted, is worth another sample.
                if account.promoted > 0 || base > had + had / 8 {
                    account.idle = 0;
                }
                let since = tick.now().saturating_sub(then);
                let rarer =
                    f64::from(1u32 << account.idle.saturating_sub(1).min(parameters.sample_rarer).min(16));
                since >= parameters.sample_every
                    && since.as_secs_f64() >= rarer * parameters.least_period(tick, process)
            });
            if is_due {
                account.idle = account.idle.saturating_add(1);
                account.promoted = 0;
                account.sampled = Some((tick.now(), base));
                let _ = tick.sample(process, parameters.window, Reason::Period, |region| region.present > 0);
            }
        }
    }

    /// Splits the least useful huge pages of processes above their caps.
    fn enforce_caps(&mut self, tick: &mut Tick<'_>, gains: &mut Gains) {
        for (at, process) in gains.processes.iter().enumerate() {
            if self.caps.least(process.id).is_none_or(|left| left >= 0) {
                continue;
            }
            let mut regions: Vec<(f64, &Region)> = process
                .regions
                .iter()
                .zip(gains.of(at))
                .filter(|(region, _)| region.leaf == Leaf::Huge2m)
                .map(|(region, gain)| (gain.share, region))
                .collect();
            regions.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.page.cmp(&b.1.page)));
            for (_, region) in regions {
                if self.caps.least(process.id).is_none_or(|left| left >= 0) {
                    break;
                }
                match tick.demote(process, region, Reason::OverCap) {
                    Answer::Accepted => self.caps.take(process.id, -1),
                    Answer::Refused => {}
                    Answer::Spent => return,
                }
            }
        }
    }

    /// Returns the cost of a promotion in bytes: those that it copies or zeroes, and those that it
    /// binds, at their price.
    fn price(&self, region: &Region, nearness: f64) -> f64 {
        let absent = f64::from(PAGES - region.present) * BASE_PAGE as f64;
        // Rises without limit as memory gets short.
        let rise = nearness / (1.0 - nearness).max(1e-3);
        HUGE_2M as f64 + absent * self.parameters.bound_price * rise
    }

    /// Notes the processes with enough gain from streams.
    fn note_streams(&mut self, gains: &mut Gains) {
        for (at, process) in gains.processes.iter().enumerate() {
            let Some(account) = self.accounts.get_mut(&process.id).filter(|account| !account.streams_pay)
            else {
                continue;
            };
            // Neither counters nor a trial guess the part of a walk that prefetching leaves.
            let is_known = process.translation.is_some_and(|cost| cost.source != CostSource::Estimated);
            account.streams_pay = is_known || gains.streaming(at) >= self.parameters.least_streaming;
        }
    }

    fn compete<'a>(&self, tick: &Tick<'_>, gains: &mut Gains<'a>) -> Vec<Competitor<'a>> {
        let machine = self.watermarks.nearness(tick.in_use());
        let shows_accesses =
            tick.snapshot().sampling.as_ref().map(|sampling| sampling.tracker.tells_accesses());
        let processes: &'a [&'a Process] = gains.processes;
        let mut huge = HugePages::default();
        let mut competitors: Vec<Competitor> = processes
            .iter()
            .enumerate()
            .map(|(at, process)| {
                let weight = weight(&self.parameters.claims, process);
                let account = self.accounts.get(&process.id);
                let usage = account.map_or(1.0, |account| account.usage);
                let since = account.map_or(tick.now(), |account| account.since);
                let is_new = tick.now().saturating_sub(since) < self.parameters.first_sample;
                let nearness = machine.max(self.groups.nearness(process));
                let life = process.cpu.max(self.parameters.least_life).min(self.parameters.most_life);
                let cost = self.parameters.copy_cost.as_secs_f64();
                let least_gain = cost / life.as_secs_f64();
                let quick_gain = cost / self.parameters.quick.as_secs_f64();
                let short = self.groups.is_short(process);
                // Samples will soon distinguish its hot regions from cold ones.
                let waits = shows_accesses == Some(true) && is_new;
                let sampled = process.regions.iter().any(is_sampled_base);
                // No tracker shows its hot regions, now or later. A full region binds nothing more.
                let hidden = shows_accesses == Some(false) && !is_new;
                let blind = hidden && weight > 0.0 && usage >= self.parameters.blind_usage;
                let streams_pay = account.is_none_or(|account| account.streams_pay);
                let mut candidates: Vec<Candidate> = tick
                    .promotable(process)
                    .filter(|(_, region)| is_accessed(region) && !short)
                    .filter_map(|(place, region)| {
                        let gain = gains.of(at)[place];
                        // A region that is presumed as cold as the sampled ones gets no guaranteed
                        // share either.
                        if region.accessed.is_none() && (waits || sampled && gain.share <= 0.0) {
                            return None;
                        }
                        let counts = weight > 0.0 && (streams_pay || !gain.streams());
                        let gain = gain.share;
                        Some(Candidate {
                            score: Score(gain * usage * weight / self.price(region, nearness)),
                            page: Reverse(region.page),
                            pays: gain >= least_gain && counts || blind && region.present == PAGES,
                            quick: gain >= quick_gain && counts,
                        })
                    })
                    .collect();
                level(&mut candidates, self.parameters.alike);
                Competitor {
                    process,
                    weight,
                    huge: huge.add(process),
                    guaranteed: 0.0,
                    candidates: candidates.into(),
                }
            })
            .collect();

        let nodes = &tick.snapshot().machine.nodes;
        let available: u64 = nodes.iter().fold(0, |sum, node| sum.saturating_add(node.huge_available));
        let had: u64 = competitors.iter().map(|competitor| competitor.huge).sum();
        let most = tick.snapshot().machine.memory.total.0 / HUGE_2M as u64;
        let guaranteed = self.parameters.guarantee * available.saturating_add(had).min(most) as f64;
        let weights: f64 = competitors.iter().map(|competitor| competitor.weight).sum();
        for competitor in &mut competitors {
            let wanted = competitor.huge as f64 + competitor.candidates.len() as f64;
            let share = if weights > 0.0 { competitor.weight / weights } else { 0.0 };
            competitor.guaranteed = (guaranteed * share).min(wanted);
        }
        competitors
    }

    fn promote(&mut self, tick: &mut Tick<'_>, gains: &mut Gains) {
        let waiting = std::mem::take(&mut self.patient);
        let untried = tick.untried_promotions();
        self.promotions.give_back(untried.iter().filter(|place| waiting.contains(place)).count() as u64);
        self.promotions_quick.give_back(untried.len() as u64);
        let mut patient = self.promotions.due(tick.now(), self.parameters.promote);
        let quick = self.promotions_quick.due(tick.now(), self.parameters.promote_quick);
        let mut work = quick.max(patient);
        if work == 0 {
            return;
        }
        self.more = self.promote_within(tick, gains, &mut work, &mut patient);
        // Keeps the unused work of the round: a step before the next round may find candidates for
        // it.
        self.promotions.give_back(patient.min(work));
        self.promotions_quick.give_back(work.min(quick));
    }

    /// Requests at most `work` promotions, of which at most `patient` need not pay soon; lowers
    /// both. Returns true if more would have paid soon.
    fn promote_within(
        &mut self,
        tick: &mut Tick<'_>,
        gains: &mut Gains,
        work: &mut u64,
        patient: &mut u64,
    ) -> bool {
        let must_pay = self.parameters.guaranteed_pays;
        self.note_streams(gains);
        let mut competitors = self.compete(tick, gains);
        let mut grants = Amounts::of_grants(&self.parameters.claims, gains.processes);
        // Promotions leave free the memory above the low watermark, so that they never start a
        // recovery. At the watermark, full regions are still promoted: they bind nothing in
        // addition.
        let total = tick.snapshot().machine.memory.total.0 as f64;
        let mut room = ((self.watermarks.low() - tick.in_use()) * total).max(0.0);
        let mut rooms = self.groups.rooms();
        let wanted: usize = competitors.iter().map(|competitor| competitor.candidates.len()).sum();
        let plentiful = wanted as f64 * HUGE_2M as f64 <= room;
        let turn = match plentiful {
            true => self.parameters.plentiful_turn,
            false => self.parameters.guaranteed_turn,
        };
        let mut turns = self.turn;
        let (mut by_gain, mut by_need) = (Order::default(), Order::default());
        let mut changed: Vec<usize> = (0..competitors.len()).collect();
        while *work > 0 {
            let best = |at: usize| {
                let best = competitors[at].candidates.peek()?;
                self.caps.allow(competitors[at].process.id).then_some(best)
            };
            let pays = |best: &&Candidate| best.quick || best.pays && *patient > 0;
            let gain = |at: usize| best(at).filter(pays).map(|best| best.score);
            let need = |at: usize| {
                let fulfilled = competitors[at].fulfilled();
                let counts = |best: &&Candidate| *patient > 0 && fulfilled < 1.0 && (best.pays || !must_pay);
                best(at).filter(counts).map(|_| Score(-fulfilled))
            };
            for at in changed.drain(..) {
                by_gain.push(at, gain(at));
                by_need.push(at, need(at));
            }
            let first = || {
                let open = (0..competitors.len()).filter(|at| best(*at).is_some());
                let lacking = open.map(|at| (grants.most(competitors[at].process.id), at)).max();
                lacking.filter(|(lacking, _)| *lacking > 0)
            };
            let mut needy = || Some((by_need.top(need)?, Reason::GuaranteedShare));
            let mut best = || Some((by_gain.top(gain)?, Reason::Gain));
            let chosen = if let Some((_, at)) = grants.any().then(first).flatten() {
                Some((at, Reason::GuaranteedShare))
            } else if turns.is_multiple_of(turn.max(1)) {
                needy().or_else(best)
            } else {
                best().or_else(needy)
            };
            let Some((at, reason)) = chosen else { return false };
            changed.push(at);
            let competitor = &mut competitors[at];
            let process = competitor.process;
            let Some(candidate) = competitor.candidates.pop() else { continue };
            let Some(region) = region_at(process, candidate.page.0) else { continue };
            let bytes = |pages: u16| f64::from(pages) * BASE_PAGE as f64;
            let absent = PAGES - region.present;
            let group = process.memory_limit.as_ref().and_then(|limit| rooms.get_mut(&limit.group));
            let fitting = group.as_deref().copied().unwrap_or(f64::INFINITY).min(room);
            let nearness = self.watermarks.nearness(tick.in_use()).max(self.groups.nearness(process));
            let (answer, bound, pages) = if bytes(absent) <= fitting && !bloats(region, nearness) {
                (tick.promote(process, region, PageSize::HUGE_2M, reason), absent, 1)
            } else {
                // Collapses blocks with at least half of their pages present: this binds at most as
                // much again.
                let bound = absent.min(region.present);
                let size = self.parameters.small;
                let small = bytes(bound) <= fitting && !has_folios(region, size);
                let answer = match small {
                    true => tick.promote(process, region, size, Reason::WouldBloat),
                    false => Answer::Refused,
                };
                (answer, bound, 0)
            };
            match answer {
                Answer::Accepted => {
                    room -= bytes(bound);
                    if let Some(room) = group {
                        *room -= bytes(bound);
                    }
                    competitor.huge += pages as u64;
                    grants.take(process.id, 1);
                    self.caps.take(process.id, pages);
                    turns += 1;
                    *work -= 1;
                    let is_patient = reason == Reason::GuaranteedShare || !candidate.quick;
                    *patient = patient.saturating_sub(u64::from(is_patient));
                    self.patient.extend(is_patient.then_some((process.id, region.page)));
                }
                Answer::Refused => {}
                Answer::Spent => return candidate.quick,
            }
        }
        competitors.iter().any(|competitor| {
            competitor.candidates.peek().is_some_and(|best| best.quick)
                && self.caps.allow(competitor.process.id)
        })
    }

    /// Requests free blocks zeroed ahead of faults: the more, the faster memory fills.
    fn pre_zero(&mut self, tick: &mut Tick<'_>) {
        let due = self.zeroings.due(tick.now(), self.parameters.pre_zero);
        let filling =
            self.watermarks.growth() * tick.snapshot().machine.memory.total.0 as f64 / HUGE_2M as f64;
        let wanted = (1.5 * filling * tick.elapsed().as_secs_f64()) as u64;
        let most = self.parameters.pre_zero_most.max(due);
        let _ = tick.pre_zero(due.max(wanted).min(most), Reason::FaultLatency);
    }
}

/// Gives candidates of one process with similar scores the best score among them. The steps are of
/// the factor `alike`, 1 or more, from the best of all down. The order among processes stays the
/// same.
fn level(candidates: &mut [Candidate], alike: f64) {
    let best = candidates.iter().map(|candidate| candidate.score.0).fold(0.0, f64::max);
    let width = alike.log2();
    if width <= 0.0 || best <= 0.0 {
        return;
    }
    let step = |score: f64| ((best / score).log2() / width).floor().min(1e6) as u64;
    let mut tops: BTreeMap<u64, f64> = BTreeMap::new();
    for score in candidates.iter().map(|candidate| candidate.score.0).filter(|score| *score > 0.0) {
        let top = tops.entry(step(score)).or_default();
        *top = top.max(score);
    }
    for candidate in candidates.iter_mut().filter(|candidate| candidate.score.0 > 0.0) {
        candidate.score.0 = tops[&step(candidate.score.0)];
    }
}

/// Returns true if a huge page would bind too much unused memory. The nearer memory is to being
/// short, the fuller a region must be.
fn bloats(region: &Region, nearness: f64) -> bool {
    f64::from(region.present) < nearness * f64::from(PAGES)
}

/// Returns false only if samples show that a region is not accessed.
fn is_accessed(region: &Region) -> bool {
    region.accessed.is_none_or(|accessed| accessed.average > 0.0)
}

/// Returns true if all present pages are known to lie on folios of at least `size` already.
fn has_folios(region: &Region, size: PageSize) -> bool {
    let order = (size.bytes().0 / BASE_PAGE as u64).ilog2() as usize;
    region.folios.is_some_and(|folios| folios.iter().skip(order).sum::<u16>() >= region.present)
}

impl Policy for Megapage {
    fn name(&self) -> &'static str {
        self.parameters.name
    }

    fn tick(&mut self, tick: &mut Tick<'_>) {
        let processes = tick.processes();
        self.watermarks.observe(&tick.snapshot().machine, tick.in_use(), tick.elapsed());
        self.groups.observe(&processes, tick.elapsed());
        self.track(tick, &processes);
        let mut gains = Gains::new(self.parameters.model, &processes);
        self.recover(tick, &mut gains);
        self.enforce_caps(tick, &mut gains);
        self.promote(tick, &mut gains);
        self.pre_zero(tick);
    }

    fn on_fault(&mut self, fault: &Fault) -> FaultSize {
        if !fault.eligible {
            return FaultSize::Base;
        }
        let headroom = &fault.headroom;
        if headroom.free < Bytes(2 * HUGE_2M as u64) {
            return FaultSize::Base;
        }
        let small = FaultSize::Mthp(self.parameters.small);
        let fill = self.accounts.get(&fault.process).map_or(1.0, |account| account.fill_tracker.fill());
        let nearness = self.watermarks.nearness_at_fault(headroom.in_use());
        let wanted = if nearness < 1.0 { nearness * self.parameters.fault_fill } else { 1.0 };
        let fits = fill >= wanted;
        if !fits {
            // Uses a block of the smaller size if the process would fill at least half of it.
            return if fill >= 0.5 { small } else { FaultSize::Base };
        }
        let capped = !self.caps.allow(fault.process);
        if fault.present > 0 || capped || headroom.huge_available == 0 {
            return small;
        }
        self.caps.take(fault.process, 1);
        FaultSize::Huge
    }

    fn note(&mut self, _now: Duration, outcome: &Outcome) {
        let Action::Promote { process, .. } = outcome.action else { return };
        self.turn += 1;
        if let Some(account) = self.accounts.get_mut(&process) {
            account.promoted += 1;
        }
    }

    fn prefers_zeroed(&self) -> bool {
        true
    }

    fn wants_more(&self) -> bool {
        self.more
    }

    fn tracked(&self) -> usize {
        let nurseries: usize = self.accounts.values().map(|account| 1 + account.fill_tracker.len()).sum();
        nurseries + self.scans.len() + self.caps.len() + self.groups.len()
    }
}
