//! Control groups with a memory limit: each has its own watermarks, like the machine. A group that
//! reaches its limit loses a process or makes it wait, even if the machine has memory left. Only
//! its own processes can relieve it.

use super::watermarks::{Constants, Watermarks};
use megapage_snapshot::Process;
use std::collections::BTreeMap;
use std::time::Duration;

/// Limited groups of the last snapshot.
#[derive(Clone, Debug)]
pub(crate) struct Groups {
    constants: Constants,
    known: BTreeMap<String, Group>,
}

#[derive(Clone, Debug)]
struct Group {
    watermarks: Watermarks,
    in_use: f64,
    /// Limit, in bytes.
    limit: f64,
}

impl Groups {
    pub fn new(constants: Constants) -> Groups {
        Groups { constants, known: BTreeMap::new() }
    }

    /// Takes in a snapshot. Forgets groups without a process in it.
    pub fn observe(&mut self, processes: &[&Process], elapsed: Duration) {
        let limits: BTreeMap<&str, _> = processes
            .iter()
            .filter_map(|process| process.memory_limit.as_ref())
            .map(|limit| (limit.group.as_str(), limit))
            .collect();
        self.known.retain(|name, _| limits.contains_key(name.as_str()));
        for (name, limit) in limits {
            let constants = self.constants;
            let group = self.known.entry(name.to_string()).or_insert_with(|| Group {
                watermarks: Watermarks::new(constants),
                in_use: 0.0,
                limit: 0.0,
            });
            group.in_use = limit.in_use();
            group.limit = limit.limit.0 as f64;
            // No source measures the pressure in it.
            group.watermarks.observe_share(group.in_use, constants.blind, 0.0, elapsed);
        }
    }

    fn of(&self, process: &Process) -> Option<&Group> {
        self.known.get(&process.memory_limit.as_ref()?.group)
    }

    /// Returns the groups with short memory, each with the bytes to be freed.
    pub fn short(&self) -> impl Iterator<Item = (&str, f64)> {
        self.known.iter().filter(|(_, group)| group.watermarks.is_short()).map(|(name, group)| {
            (name.as_str(), (group.in_use - group.watermarks.low()).max(0.0) * group.limit)
        })
    }

    /// Returns true if memory is short in a process's group now, and not only expected to be.
    pub fn is_short(&self, process: &Process) -> bool {
        self.of(process).is_some_and(|group| group.watermarks.has_been_reached())
    }

    /// Returns the nearness of the group to short memory, 0 to 1; 0 if no group limits the process.
    pub fn nearness(&self, process: &Process) -> f64 {
        self.of(process).map_or(0.0, |group| group.watermarks.nearness(group.in_use))
    }

    /// Returns the bytes that promotions may bind in each group, up to its low watermark.
    pub fn rooms(&self) -> BTreeMap<String, f64> {
        let room = |group: &Group| ((group.watermarks.low() - group.in_use) * group.limit).max(0.0);
        self.known.iter().map(|(name, group)| (name.clone(), room(group))).collect()
    }

    /// Returns the number of tracked groups.
    pub fn len(&self) -> usize {
        self.known.len()
    }
}
