//! Who may have what: the stock, the leases, the quotas. Pure: what a parcel is, its user says.

use megapage_memory::stock::wire::Verdict;
use std::collections::{BTreeMap, VecDeque};

/// What holds for all.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// Bytes of a page.
    pub page_bytes: u64,
    /// Pages of a parcel.
    pub parcel_pages: u64,
    /// Parcels that are to be ready.
    pub stock: usize,
    /// Bytes that one user may have; `None`: as much as there is.
    pub quota: Option<u64>,
    /// Parcels that may be out at one time.
    pub most_leases: usize,
    /// Parcels that one answer carries.
    pub most_at_once: usize,
}

impl Rules {
    /// Bytes of a parcel.
    pub fn parcel_bytes(&self) -> u64 {
        self.page_bytes * self.parcel_pages
    }
}

/// What one user has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Held {
    /// Parcels.
    pub parcels: usize,
    /// Processes that hold them.
    pub processes: usize,
    /// Bytes of them that are there.
    pub bytes: u64,
}

/// The stock and the leases.
#[derive(Debug)]
pub struct Books<P> {
    rules: Rules,
    ready: VecDeque<P>,
    /// Parcels that are out, by process and user.
    leases: BTreeMap<(u64, u32), Vec<P>>,
    /// How many there are, of all and of each user who has any.
    out: usize,
    out_of: BTreeMap<u32, usize>,
}

impl<P> Books<P> {
    /// With nothing in stock.
    pub fn new(rules: Rules) -> Books<P> {
        Books { rules, ready: VecDeque::new(), leases: BTreeMap::new(), out: 0, out_of: BTreeMap::new() }
    }

    /// What holds for all.
    pub fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Parcels that are ready.
    pub fn ready(&self) -> usize {
        self.ready.len()
    }

    /// Parcels that are missing from the stock.
    pub fn missing(&self) -> usize {
        self.rules.stock.saturating_sub(self.ready.len())
    }

    /// So many parcels are to be ready from now on; those that are too many.
    #[must_use = "they are nobody's any more"]
    pub fn keep_ready(&mut self, stock: usize) -> Vec<P> {
        self.rules.stock = stock;
        self.ready.split_off(stock.min(self.ready.len())).into()
    }

    /// Puts a parcel into stock: one that nobody else has ever had.
    pub fn add(&mut self, parcel: P) {
        self.ready.push_back(parcel);
    }

    /// Hands out parcels of `pages` pages in all, at least one and no more than are ready, to a process of this user's. A
    /// parcel counts whole until its process has ended: its holder can give pages back, and touch them again.
    pub fn take(&mut self, uid: u32, process: u64, pages: u64) -> Result<Vec<&P>, Verdict> {
        let asked = usize::try_from(pages / self.rules.parcel_pages).unwrap_or(usize::MAX).max(1);
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
        let parcels = self.leases.entry((process, uid)).or_default();
        let first = parcels.len();
        parcels.extend(self.ready.drain(..count));
        Ok(parcels[first..].iter().collect())
    }

    /// How many parcels more the user may have.
    fn within_quota(&self, uid: u32, quota: u64) -> usize {
        let most = usize::try_from(quota / self.rules.parcel_bytes()).unwrap_or(usize::MAX);
        most.saturating_sub(self.out_of.get(&uid).copied().unwrap_or(0))
    }

    /// The leases of a process are over: its parcels, which are not to be handed out again.
    #[must_use = "their pages have to be given back"]
    pub fn end(&mut self, process: u64) -> Vec<P> {
        self.take_back(process, usize::MAX)
    }

    /// The last `count` leases of a process are over: they did not reach it.
    #[must_use = "their pages have to be given back"]
    pub fn take_back(&mut self, process: u64, count: usize) -> Vec<P> {
        let mut back = Vec::new();
        // More than one user's where it has changed its own.
        while back.len() < count
            && let Some((&(_, uid), parcels)) =
                self.leases.range_mut((process, 0)..=(process, u32::MAX)).next_back()
        {
            let kept = parcels.len().saturating_sub(count - back.len());
            let ended = parcels.split_off(kept);
            self.over(process, uid, ended.len(), kept);
            back.extend(ended);
        }
        back
    }

    /// So many leases are over, and so many are left.
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

    /// Whether a process has any lease.
    pub fn has(&self, process: u64) -> bool {
        self.leases.range((process, 0)..=(process, u32::MAX)).next().is_some()
    }

    /// What each user has, by user.
    pub fn held(&self, weigh: impl Fn(&P) -> u64) -> BTreeMap<u32, Held> {
        let mut users: BTreeMap<u32, Held> = BTreeMap::new();
        for ((_, uid), parcels) in &self.leases {
            let held = users.entry(*uid).or_default();
            held.parcels += parcels.len();
            held.processes += 1;
            held.bytes += parcels.iter().map(&weigh).sum::<u64>();
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
        parcel_pages: 4,
        stock: 6,
        quota: Some(5 * (8 << 20)),
        most_leases: 12,
        most_at_once: 3,
    };

    fn whole(_: &u64) -> u64 {
        RULES.parcel_bytes()
    }

    fn books(parcels: u64) -> Books<u64> {
        let mut books = Books::new(RULES);
        (0..parcels).for_each(|parcel| books.add(parcel));
        books
    }

    #[test]
    fn pages_are_handed_out_in_parcels() {
        let mut books = books(6);
        assert_eq!(books.missing(), 0);
        assert_eq!(books.take(1, 1, 1).unwrap(), [&0], "at least one");
        assert_eq!(books.take(1, 1, 11).unwrap(), [&1, &2], "no more than asked for");
        assert_eq!(books.take(2, 2, u64::MAX).unwrap(), [&3, &4, &5], "no more than fit into an answer");
        assert_eq!(books.take(3, 3, 1), Err(Verdict::Empty));
        assert_eq!((books.missing(), books.ready()), (6, 0));
    }

    #[test]
    fn one_user_has_no_more_than_its_quota_whatever_it_gives_back() {
        let mut books = books(10);
        assert_eq!(books.take(1, 1, 12).unwrap().len(), 3);
        assert_eq!(books.take(1, 2, 12).unwrap().len(), 2, "the quota is the user's, not the process's");
        assert_eq!(books.take(1, 3, 1), Err(Verdict::Quota));
        assert_eq!(books.take(2, 4, 4).unwrap().len(), 1);
        // Whatever it gives back: it can touch that again.
        assert_eq!(books.held(|_| 0)[&1].bytes, 0);
        assert_eq!(books.take(1, 3, 1), Err(Verdict::Quota));
        assert_eq!(books.end(1).len(), 3);
        assert_eq!(books.take(1, 3, 12).unwrap().len(), 3);
        let held = books.held(whole);
        assert_eq!(held[&1], Held { parcels: 5, processes: 2, bytes: 5 * (8 << 20) });
        assert_eq!(held[&2], Held { parcels: 1, processes: 1, bytes: 8 << 20 });
    }

    #[test]
    fn what_ends_is_not_handed_out_again() {
        let mut books = books(4);
        books.take(1, 7, 8).unwrap();
        assert_eq!(books.take_back(7, 1), [1]);
        assert_eq!(books.end(7), [0]);
        assert!(!books.has(7));
        assert_eq!(books.end(7), [] as [u64; 0]);
        assert_eq!(books.take(1, 8, 12).unwrap(), [&2, &3]);
    }

    #[test]
    fn less_can_be_kept_ready() {
        let mut books = books(6);
        assert_eq!(books.keep_ready(4), [4, 5]);
        assert_eq!((books.ready(), books.missing()), (4, 0));
        books.take(1, 1, 4).unwrap();
        assert_eq!(books.keep_ready(6), [] as [u64; 0]);
        assert_eq!(books.missing(), 3);
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
        fn a_parcel_is_handed_out_once_and_bounds_hold(steps in steps()) {
            let mut books = books(0);
            let (mut made, mut given) = (0, BTreeSet::new());
            for step in steps {
                match step {
                    Step::Add => {
                        books.add(made);
                        made += 1;
                    }
                    Step::Take { uid, process, pages } => {
                        let ready = books.ready();
                        match books.take(uid, process, pages) {
                            Ok(parcels) => {
                                prop_assert!(!parcels.is_empty() && parcels.len() <= 3.min(ready));
                                for parcel in parcels {
                                    prop_assert!(given.insert(*parcel), "{} was out before", parcel);
                                }
                            }
                            Err(Verdict::Empty) => prop_assert_eq!(ready, 0),
                            Err(verdict) => prop_assert!([Verdict::Full, Verdict::Quota].contains(&verdict)),
                        }
                    }
                    Step::End(process) => {
                        for parcel in books.end(process) {
                            prop_assert!(given.contains(&parcel));
                        }
                    }
                    Step::TakeBack(process) => prop_assert!(books.take_back(process, 2).len() <= 2),
                }
                let held = books.held(whole);
                prop_assert!(held.values().all(|held| held.bytes <= RULES.quota.unwrap()));
                let out = held.values().map(|held| held.parcels).sum::<usize>();
                prop_assert!(out <= RULES.most_leases);
                prop_assert_eq!(out, books.out, "the account closes");
                prop_assert_eq!(out, books.out_of.values().sum::<usize>());
            }
        }
    }
}
