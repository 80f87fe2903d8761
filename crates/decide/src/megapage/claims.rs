//! Entitlement to huge memory: weights, caps, guaranteed shares.

use megapage_snapshot::{HugePages, Process, ProcessId};
use megapage_units::{Bytes, HUGE_2M};
use std::collections::BTreeMap;

/// Processes that a claim covers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Whom {
    /// Each process of this command name.
    Name(String),
    /// The processes in this control group and those below it, together.
    Cgroup(String),
}

/// Grant of an operator.
#[derive(Clone, Debug, PartialEq)]
pub struct Claim {
    /// Processes that it covers.
    pub whom: Whom,
    /// Factor of their gains against those of others; every process has 1. Several claims multiply.
    pub weight: f64,
    /// Maximum of huge memory: of each process, or of the whole control group.
    pub cap: Option<Bytes>,
    /// Huge memory that each process, or the whole control group, gets before any process gets
    /// more, as far as it has use for it.
    pub least: Option<Bytes>,
}

impl Claim {
    fn covers(&self, process: &Process) -> bool {
        match &self.whom {
            Whom::Name(name) => process.name == *name,
            Whom::Cgroup(group) => {
                let group = group.trim_end_matches('/');
                process
                    .cgroup
                    .strip_prefix(group)
                    .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
            }
        }
    }
}

/// Returns the weight of a process, not negative.
pub(crate) fn weight(claims: &[Claim], process: &Process) -> f64 {
    let product: f64 =
        claims.iter().filter(|claim| claim.covers(process)).map(|claim| claim.weight).product();
    if product.is_finite() { product.max(0.0) } else { 0.0 }
}

/// Huge pages left of the amounts that claims name. The amount of a name applies to each process,
/// that of a control group to all of them together.
#[derive(Clone, Debug, Default)]
pub(crate) struct Amounts {
    /// Huge pages left of each amount; negative if there are too many.
    left: Vec<i64>,
    /// The amounts of a process, as indices.
    of: BTreeMap<ProcessId, Vec<usize>>,
}

impl Amounts {
    /// Computes what is left of each amount from the huge pages that each process has.
    fn new(claims: &[Claim], processes: &[&Process], amount: impl Fn(&Claim) -> Option<Bytes>) -> Amounts {
        let mut all = Amounts::default();
        for claim in claims {
            let Some(amount) = amount(claim) else { continue };
            let members: Vec<&Process> =
                processes.iter().copied().filter(|process| claim.covers(process)).collect();
            let size = if matches!(claim.whom, Whom::Name(_)) { 1 } else { members.len().max(1) };
            for members in members.chunks(size) {
                members.iter().for_each(|process| all.of.entry(process.id).or_default().push(all.left.len()));
                let had = HugePages::of(members.iter().copied());
                all.left.push((amount.0 / HUGE_2M as u64) as i64 - had as i64);
            }
        }
        all
    }

    /// Returns what is left of the caps.
    pub fn of_caps(claims: &[Claim], processes: &[&Process]) -> Amounts {
        Amounts::new(claims, processes, |claim| claim.cap)
    }

    /// Returns what processes lack of the memory that they get before any process gets more.
    pub fn of_grants(claims: &[Claim], processes: &[&Process]) -> Amounts {
        Amounts::new(claims, processes, |claim| claim.least)
    }

    fn amounts(&self, id: ProcessId) -> impl Iterator<Item = i64> {
        self.of.get(&id).into_iter().flatten().map(|at| self.left[*at])
    }

    /// Returns the least amount left to the process: negative if it has too many huge pages;
    /// `None` without an amount.
    pub fn least(&self, id: ProcessId) -> Option<i64> {
        self.amounts(id).min()
    }

    /// Returns true if the process may get one more huge page under each amount.
    pub fn allow(&self, id: ProcessId) -> bool {
        self.amounts(id).all(|left| left > 0)
    }

    /// Returns the greatest amount left to the process; 0 without an amount.
    pub fn most(&self, id: ProcessId) -> i64 {
        self.amounts(id).max().unwrap_or(0).max(0)
    }

    /// Returns true if something is left of an amount.
    pub fn any(&self) -> bool {
        self.left.iter().any(|left| *left > 0)
    }

    /// Counts one more huge page for the process (1), or one less (-1).
    pub fn take(&mut self, id: ProcessId, pages: i64) {
        for at in self.of.get(&id).into_iter().flatten() {
            self.left[*at] -= pages;
        }
    }

    /// Returns the number of tracked processes with an amount.
    pub fn len(&self) -> usize {
        self.of.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::made::*;

    fn claim(whom: Whom, weight: f64, mib: Option<u64>) -> Claim {
        Claim { whom, weight, cap: mib.map(Bytes::mib), least: None }
    }

    fn member(pid: i32, cgroup: &str, huge_pages: u64) -> Process {
        let mut process = process(pid, (0..huge_pages).map(|n| huge(n, 0)).collect());
        process.cgroup = cgroup.to_string();
        process
    }

    #[test]
    fn weights_of_name_and_group_multiply() {
        let claims =
            [claim(Whom::Name("p1".into()), 3.0, None), claim(Whom::Cgroup("/a/".into()), 0.5, None)];
        assert_eq!(weight(&claims, &member(1, "/a/b", 0)), 1.5);
        assert_eq!(weight(&claims, &member(2, "/a", 0)), 0.5);
        assert_eq!(weight(&claims, &member(2, "/ab", 0)), 1.0);
        assert_eq!(weight(&[claim(Whom::Name("p1".into()), f64::NAN, None)], &member(1, "", 0)), 0.0);
    }

    #[test]
    fn what_is_lacking_is_each_processs_or_the_groups() {
        let least = |whom, mib| Claim { least: Some(Bytes::mib(mib)), ..claim(whom, 1.0, None) };
        let claims = [least(Whom::Cgroup("/a".into()), 10), least(Whom::Name("p2".into()), 14)];
        let processes = [member(1, "/a", 2), member(2, "/a/b", 1), member(3, "/c", 9)];
        let mut grants = Amounts::of_grants(&claims, &processes.iter().collect::<Vec<_>>());
        assert_eq!([1, 2, 3].map(|pid| grants.most(id(pid))), [2, 6, 0]);
        grants.take(id(1), 1);
        grants.take(id(1), 1);
        assert_eq!([1, 2, 3].map(|pid| grants.most(id(pid))), [0, 6, 0]);
        // A page of the second process counts for its group as well.
        grants.take(id(2), 1);
        assert_eq!([1, 2].map(|pid| grants.most(id(pid))), [0, 5]);
    }

    #[test]
    fn a_groups_cap_is_common_a_names_is_each_processs() {
        let claims =
            [claim(Whom::Cgroup("/a".into()), 1.0, Some(10)), claim(Whom::Name("p2".into()), 1.0, Some(4))];
        let processes = [member(1, "/a", 2), member(2, "/a/b", 1), member(3, "/c", 9)];
        let mut caps = Amounts::of_caps(&claims, &processes.iter().collect::<Vec<_>>());
        assert_eq!([1, 2, 3].map(|pid| caps.least(id(pid))), [Some(2), Some(1), None]);
        caps.take(id(2), 1);
        assert_eq!([1, 2, 3].map(|pid| caps.least(id(pid))), [Some(1), Some(0), None]);
        caps.take(id(1), 2);
        assert_eq!(caps.least(id(1)), Some(-1));
    }
}
