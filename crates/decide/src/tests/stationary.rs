//! On a workload that does not change, no policy promotes again what it has demoted.

use super::made::*;
use crate::{Action, Limits, Obtained, POLICIES, State, step};
use megapage_snapshot::{AccessClass, AccessProfile, CostSource, Leaf, PAGES, Process, TranslationCost};
use megapage_units::{BASE_PAGE, Bytes};
use std::collections::BTreeMap;

/// A machine on which others use the memory beside that of the processes.
struct World {
    processes: Vec<Process>,
    total: u64,
    others: u64,
}

impl World {
    /// Returns three processes: a dense one that chases pointers, a sparse one that reads at
    /// random, an idle one.
    fn new(others: f64) -> World {
        let dense = (0..75).map(|n| base(n, PAGES)).collect();
        let sparse = (0..150).map(|n| base(n, 80 + (n % 7) as u16 * 20)).collect();
        let idle = (0..25).map(|n| base(n, 300)).collect();
        let processes = vec![process(1, dense), process(2, sparse), process(3, idle)];
        let total = Bytes::mib(512).0;
        World { processes, total, others: (others * total as f64) as u64 }
    }

    fn snapshot(&mut self, second: u32) -> megapage_snapshot::Snapshot {
        let now = SECOND * second;
        let sampled = SECOND * (second / 30 * 30 + 1);
        for (at, process) in self.processes.iter_mut().enumerate() {
            for region in &mut process.regions {
                let pages = if region.leaf == Leaf::Base { region.present } else { PAGES };
                let coverage = if at == 2 { 0 } else { pages };
                *region = accessed(region.clone(), coverage, sampled);
                let class = if at == 0 { AccessClass::Dependent } else { AccessClass::Random };
                region.profile = Some(AccessProfile { visits: if at == 2 { 0.0 } else { 1e5 }, class });
            }
            let share = [0.3, 0.1, 0.0][at];
            process.cpu = if at == 2 { SECOND } else { now };
            process.translation =
                Some(TranslationCost { share, low: share, high: share, source: CostSource::Measured });
        }
        let mut seen = snapshot(now, 0.0, self.processes.clone());
        let free = Bytes(self.total.saturating_sub(self.used()));
        seen.machine.memory.total = Bytes(self.total);
        (seen.machine.memory.free, seen.machine.memory.available) = (free, free);
        seen.machine.nodes[0].free = free;
        seen.machine.nodes[0].huge_available = free.0 / (PAGES as u64 * BASE_PAGE as u64);
        seen
    }

    fn used(&self) -> u64 {
        let regions = self.processes.iter().flat_map(|process| &process.regions);
        self.others + regions.map(|region| region.present_bytes().0).sum::<u64>()
    }

    /// Carries out an action; returns `None` for an action without a region.
    fn apply(&mut self, action: &Action) -> Option<Obtained> {
        let (id, start) = action.place()?;
        let used = self.used();
        let process = self.processes.iter_mut().find(|process| process.id == id).unwrap();
        let region = process.regions.iter_mut().find(|region| region.page == start).unwrap();
        match action {
            Action::Promote { size, .. } if *size == megapage_units::PageSize::HUGE_2M => {
                if used + u64::from(PAGES - region.present) * BASE_PAGE as u64 > self.total {
                    return Some(Obtained::NoMemory);
                }
                *region = huge(start.number() - at(0).number(), PAGES - region.present);
            }
            Action::Recover { .. } => {
                *region = base(start.number() - at(0).number(), PAGES - region.zeros.unwrap_or(0));
            }
            Action::Demote { .. } => region.leaf = Leaf::Base,
            _ => return Some(Obtained::Unsupported),
        }
        Some(Obtained::Done)
    }
}

#[test]
fn no_policy_goes_round_at_any_level_of_memory() {
    for known in POLICIES {
        for others in [0.0, 0.15, 0.3, 0.45] {
            let mut world = World::new(others);
            let mut state = State::new(known.make(), Limits::default());
            let mut changes = Vec::new();
            // Nearly an hour: khugepaged takes five minutes for all regions, and a cool-down lasts
            // as long.
            for second in (1..3000).step_by(10) {
                let seen = world.snapshot(second);
                for action in step(SECOND * second, &seen, &mut state) {
                    let obtained = world.apply(&action);
                    if let Some(obtained) = obtained {
                        state.note(SECOND * second, &outcome(&action, obtained));
                    }
                    if obtained == Some(Obtained::Done) {
                        changes.push((second, action));
                    }
                }
            }
            // No region is promoted more than once, or demoted more than once.
            let mut counts = BTreeMap::new();
            for (_, action) in &changes {
                let demotes = !matches!(action, Action::Promote { .. });
                *counts.entry((action.process(), action.region(), demotes)).or_insert(0) += 1;
            }
            let often = counts.iter().find(|(_, times)| **times > 1);
            assert_eq!(often, None, "{} with {others} in use by others", known.name);
        }
    }
}
