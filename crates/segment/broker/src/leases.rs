//! Policy of the broker: the stock, the leases, the quotas. It is pure: the user of this module
//! chooses the type of an extent.

use megapage_memory::stock::wire::Verdict;
use std::collections::{BTreeMap, VecDeque};

/// Limits of the stock and of all users.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Pages of an extent.
    pub extent_pages: u64,
    /// Extents that are to be ready.
    pub stock: usize,
    /// Bytes that one user may have; `None`: no limit.
    pub quota: Option<u64>,
    /// Extents that may be out at one time.
    pub most_leases: usize,
    /// Extents that one answer carries.
    pub most_at_once: usize,
}

impl Rules {
    /// Returns the bytes of an extent.
    pub fn extent_bytes(&self) -> u64 {
        self.page_bytes * self.extent_pages
    }
}

/// Extents that one user has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Extents.
    pub extents: usize,
    /// Processes that hold them.
    pub processes: usize,
    /// Bytes of these extents that are present.
    pub bytes: u64,
}

/// The stock and the leases.
#[derive(Debug)]
pub struct Leases<P> {
    rules: Rules,
    ready: VecDeque<P>,
    /// Extents that are out, by process and user.
    leases: BTreeMap<(u64, u32), Vec<P>>,
    /// The number of them: in all, and of each user who has any.
    out: usize,
    out_of: BTreeMap<u32, usize>,
}

impl<P> Leases<P> {
    /// Makes an empty stock.
    pub fn new(rules: Rules) -> Leases<P> {
        Leases { rules, ready: VecDeque::new(), leases: BTreeMap::new(), out: 0, out_of: BTreeMap::new() }
    }

    /// Returns the limits.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Returns the number of extents that are ready.
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Returns the number of extents that are missing from the stock.
    pub fn missing(&self) -> usize {
        self.rules.stock.saturating_sub(self.ready.len())
    }

    /// Sets the number of extents that are to be ready from now on. Returns those that are too
    /// many.
    #[must_use = "they have no owner any more"]
    pub fn keep_ready(&mut self, stock: usize) -> Vec<P> {
        self.rules.stock = stock;
        self.ready.split_off(stock.min(self.ready.len())).into()
    }

    /// Puts an extent into stock that no client has ever had.
    pub fn add(&mut self, extent: P) {
        self.ready.push_back(extent);
    }

    /// Hands out extents of `pages` pages in all to a process of this user: at least one extent,
    /// and no more than are ready. An extent counts in full until its process has ended: its holder
    /// can release pages, and touch them again.
    pub fn take(&mut self, uid: u32, process: u64, pages: u64) -> Result<Vec<&P>, Verdict> {
        let asked = usize::try_from(pages / self.rules.extent_pages).unwrap_or(usize::MAX).max(1);
        let mut count = asked.min(self.rules.most_at_once);
        let room = self.rules.most_leases.saturating_sub(self.out);
        if room == 0 {
            return Err(Verdict::Full);
        }
        if let Some(quota) = self.rules.quota {
            count = count.min(self.within_quota(uid, quota));
            if count == 0 {
                return Err(Verdict::Quota);
            }
        }
        count = count.min(room).min(self.ready.len());
        if count == 0 {
            return Err(Verdict::Empty);
        }
        self.out += count;
        *self.out_of.entry(uid).or_default() += count;
        let extents = self.leases.entry((process, uid)).or_default();
        let first = extents.len();
        extents.extend(self.ready.drain(..count));
        Ok(extents[first..].iter().collect())
    }

    /// Returns the number of extents that the user may still get.
    fn within_quota(&self, uid: u32, quota: u64) -> usize {
        let most = usize::try_from(quota / self.rules.extent_bytes()).unwrap_or(usize::MAX);
        most.saturating_sub(self.out_of.get(&uid).copied().unwrap_or(0))
    }

    /// Ends the leases of a process. Returns its extents, which must not be handed out again.
    #[must_use = "their pages have to be given back"]
    pub fn end(&mut self, process: u64) -> Vec<P> {
        self.take_back(process, usize::MAX)
    }

    /// Ends the last `count` leases of a process, which did not reach it. Returns their extents.
    #[must_use = "their pages have to be given back"]
    pub fn take_back(&mut self, process: u64, count: usize) -> Vec<P> {
        let mut back = Vec::new();
        // It has leases of several users if it has changed its user.
        while back.len() < count
            && let Some((&(_, uid), extents)) =
                self.leases.range_mut((process, 0)..=(process, u32::MAX)).next_back()
        {
            let kept = extents.len().saturating_sub(count - back.len());
            let ended = extents.split_off(kept);
            self.over(process, uid, ended.len(), kept);
            back.extend(ended);
        }
        back
    }

    /// Notes that `ended` leases of a process and user are over, and `left` remain.
    fn over(&mut self, process: u64, uid: u32, ended: usize, left: usize) {
        self.out -= ended;
        if left == 0 {
            self.leases.remove(&(process, uid));
        }
        if let Some(out) = self.out_of.get_mut(&uid) {
            *out -= ended;
            if *out == 0 {
                self.out_of.remove(&uid);
            }
        }
    }

    /// Returns true if a process has any lease.
    pub fn has(&self, process: u64) -> bool {
        self.leases.range((process, 0)..=(process, u32::MAX)).next().is_some()
    }

    /// Returns the extents that each user has, by user.
    pub fn held(&self, weigh: impl Fn(&P) -> u64) -> BTreeMap<u32, Held> {
        let mut users: BTreeMap<u32, Held> = BTreeMap::new();
        for ((_, uid), extents) in &self.leases {
            let held = users.entry(*uid).or_default();
            held.extents += extents.len();
            held.processes += 1;
            held.bytes += extents.iter().map(&weigh).sum::<u64>();
        }
        users
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    const RULES: Rules = Rules {
        page_bytes: 2 << 20,
        extent_pages: 4,
        stock: 6,
        quota: Some(5 * (8 << 20)),
        most_leases: 12,
        most_at_once: 3,
    };

    fn whole(_: &u64) -> u64 {
        RULES.extent_bytes()
    }

    fn leases(extents: u64) -> Leases<u64> {
        let mut leases = Leases::new(RULES);
        (0..extents).for_each(|extent| leases.add(extent));
        leases
    }

    #[test]
    fn pages_are_handed_out_in_extents() {
        let mut leases = leases(6);
        assert_eq!(leases.missing(), 0);
        assert_eq!(leases.take(1, 1, 1).unwrap(), [&0], "at least one");
        assert_eq!(leases.take(1, 1, 11).unwrap(), [&1, &2], "no more than asked for");
        assert_eq!(leases.take(2, 2, u64::MAX).unwrap(), [&3, &4, &5], "no more than fit into an answer");
        assert_eq!(leases.take(3, 3, 1), Err(Verdict::Empty));
        assert_eq!((leases.missing(), leases.ready()), (6, 0));
    }

    #[test]
    fn one_user_has_no_more_than_its_quota_whatever_it_gives_back() {
        let mut leases = leases(10);
        assert_eq!(leases.take(1, 1, 12).unwrap().len(), 3);
        assert_eq!(leases.take(1, 2, 12).unwrap().len(), 2, "the quota is the user's, not the process's");
        assert_eq!(leases.take(1, 3, 1), Err(Verdict::Quota));
        assert_eq!(leases.take(2, 4, 4).unwrap().len(), 1);
        // Released pages count, too: it can touch them again.
        assert_eq!(leases.held(|_| 0)[&1].bytes, 0);
        assert_eq!(leases.take(1, 3, 1), Err(Verdict::Quota));
        assert_eq!(leases.end(1).len(), 3);
        assert_eq!(leases.take(1, 3, 12).unwrap().len(), 3);
        let held = leases.held(whole);
        assert_eq!(held[&1], Held { extents: 5, processes: 2, bytes: 5 * (8 << 20) });
        assert_eq!(held[&2], Held { extents: 1, processes: 1, bytes: 8 << 20 });
    }

    #[test]
    fn what_ends_is_not_handed_out_again() {
        let mut leases = leases(4);
        leases.take(1, 7, 8).unwrap();
        assert_eq!(leases.take_back(7, 1), [1]);
        assert_eq!(leases.end(7), [0]);
        assert!(!leases.has(7));
        assert_eq!(leases.end(7), [] as [u64; 0]);
        assert_eq!(leases.take(1, 8, 12).unwrap(), [&2, &3]);
    }

    #[test]
    fn less_can_be_kept_ready() {
        let mut leases = leases(6);
        assert_eq!(leases.keep_ready(4), [4, 5]);
        assert_eq!((leases.ready(), leases.missing()), (4, 0));
        leases.take(1, 1, 4).unwrap();
        assert_eq!(leases.keep_ready(6), [] as [u64; 0]);
        assert_eq!(leases.missing(), 3);
    }

    #[derive(Clone, Copy, Debug)]
    enum Step {
        Add,
        Take { uid: u32, process: u64, pages: u64 },
        End(u64),
        TakeBack(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            Just(Step::Add),
            Just(Step::Add),
            (0..3u32, 0..2u64, 0..40u64).prop_map(|(uid, n, pages)| Step::Take {
                uid,
                process: u64::from(uid) * 10 + n,
                pages
            }),
            (0..30u64).prop_map(Step::End),
            (0..30u64).prop_map(Step::TakeBack),
        ];
        proptest::collection::vec(step, 0..200)
    }

    proptest! {
        #[test]
        fn an_extent_is_handed_out_once_and_bounds_hold(steps in steps()) {
            let mut leases = leases(0);
            let (mut made, mut given) = (0, BTreeSet::new());
            for step in steps {
                match step {
                    Step::Add => {
                        leases.add(made);
                        made += 1;
                    }
                    Step::Take { uid, process, pages } => {
                        let ready = leases.ready();
                        match leases.take(uid, process, pages) {
                            Ok(extents) => {
                                prop_assert!(!extents.is_empty() && extents.len() <= 3.min(ready));
                                for extent in extents {
                                    prop_assert!(given.insert(*extent), "{} was out before", extent);
                                }
                            }
                            Err(Verdict::Empty) => prop_assert_eq!(ready, 0),
                            Err(verdict) => prop_assert!([Verdict::Full, Verdict::Quota].contains(&verdict)),
                        }
                    }
                    Step::End(process) => {
                        for extent in leases.end(process) {
                            prop_assert!(given.contains(&extent));
                        }
                    }
                    Step::TakeBack(process) => prop_assert!(leases.take_back(process, 2).len() <= 2),
                }
                let held = leases.held(whole);
                prop_assert!(held.values().all(|held| held.bytes <= RULES.quota.unwrap()));
                let out = held.values().map(|held| held.extents).sum::<usize>();
                prop_assert!(out <= RULES.most_leases);
                prop_assert_eq!(out, leases.out, "the account closes");
                prop_assert_eq!(out, leases.out_of.values().sum::<usize>());
            }
        }
    }
}
