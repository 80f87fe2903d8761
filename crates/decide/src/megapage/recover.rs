//! Recovery of bloat while memory is short: on the machine, or in a limited control group.

use super::{Gains, Megapage, weight};
use crate::{Answer, Reason, Tick};
use megapage_snapshot::{Leaf, Process, Region};
use megapage_units::HUGE_2M;
use std::time::Duration;

/// Memory to be freed.
struct Need {
    /// Control group to free it in; `None`: anywhere.
    group: Option<String>,
    bytes: f64,
}

impl Need {
    fn is_of(&self, process: &Process) -> bool {
        let group = process.memory_limit.as_ref().map(|limit| &limit.group);
        self.bytes > 0.0 && self.group.as_ref().is_none_or(|wanted| group == Some(wanted))
    }
}

impl Megapage {
    /// Splits huge pages that hold zeros while memory is short. The first are those with the least
    /// loss for each freed byte. Only its own processes relieve a control group near its limit.
    pub(super) fn recover(&mut self, tick: &mut Tick<'_>, gains: &mut Gains) {
        let processes = gains.processes;
        let mut needs: Vec<Need> = self
            .groups
            .short()
            .map(|(group, bytes)| Need { group: Some(group.to_string()), bytes })
            .collect();
        if self.watermarks.is_short() {
            let total = tick.snapshot().machine.memory.total.0 as f64;
            needs.push(Need { group: None, bytes: (tick.in_use() - self.watermarks.low()) * total });
        }
        let wanted = |needs: &[Need], process: &Process| needs.iter().any(|need| need.is_of(process));

        let mut bloated: Vec<(f64, usize, &Region)> = Vec::new();
        for (at, process) in processes.iter().enumerate().filter(|(_, process)| wanted(&needs, process)) {
            let usage = self.accounts.get(&process.id).map_or(1.0, |account| account.usage);
            let worth = usage * weight(&self.parameters.claims, process);
            for (place, region) in process.regions.iter().enumerate() {
                if region.leaf == Leaf::Huge2m
                    && region.zeros.is_some_and(|zeros| zeros >= self.parameters.least_zeros)
                {
                    let gain = gains.of(at)[place].share;
                    bloated.push((gain * worth / region.bloat().0.max(1) as f64, at, region));
                }
            }
        }
        bloated.sort_by(|a, b| a.0.total_cmp(&b.0).then((a.1, a.2.page).cmp(&(b.1, b.2.page))));
        for (_, at, region) in bloated {
            let process = processes[at];
            if !wanted(&needs, process) {
                continue;
            }
            match tick.recover(process, region, Reason::Bloat) {
                Answer::Accepted => {
                    let freed = region.bloat().0 as f64;
                    needs.iter_mut().filter(|need| need.is_of(process)).for_each(|need| need.bytes -= freed);
                    self.caps.take(process.id, -1);
                }
                Answer::Refused => {}
                Answer::Spent => return,
            }
        }

        // The known zeros do not suffice. Scans for more, first in the process that uses the least
        // of its memory.
        let mut order: Vec<(f64, &Process)> = processes
            .iter()
            .filter(|process| wanted(&needs, process))
            .map(|process| (process.mean_coverage().unwrap_or(0.0), *process))
            .collect();
        order.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.id.cmp(&b.1.id)));
        for (_, process) in order {
            let Some(account) = self.accounts.get_mut(&process.id) else { continue };
            let mut fresh = account.rescan;
            if self.scans.is_stale(tick.now(), process.id, fresh) {
                // Starts another pass. The next one comes soon only if the last has found
                // something.
                let found = process.bloat().0 >= process.huge_regions() as u64 * HUGE_2M as u64 / 100;
                account.rescan = match found {
                    true => self.parameters.rescan,
                    false => (account.rescan * 2).min(self.parameters.rescan_most),
                };
                fresh = Duration::ZERO;
            }
            if !self.scans.advance(tick, process, fresh) {
                return;
            }
        }
    }
}
