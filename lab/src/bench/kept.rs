//! The pool of a bench: set once for all peers and touched once. Pages that are new in the pool
//! are, behind a hypervisor, touched for the first time. The touch costs several times as much as
//! the measured work, and the peer that takes them first would pay.

use super::cases::Case;
use super::gigantic::GiganticPool;
use super::{Pool, warm};
use crate::peers::Peer;
use megapage_units::{Bytes, PageSize};
use serde::Serialize;

/// Handling of the pool over a bench.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Holding {
    /// No pool: no peer wants one.
    None,
    /// One for all cases, peers and rounds.
    Kept,
    /// Pool and workload do not fit beside each other. In each case of each round the peers without
    /// a pool come first; then it is set and touched once for the others.
    ByTurns,
}

/// The pool, or the reason for which it cannot be sized. In that case peers that want one use the
/// existing pages, and the report says so.
pub enum PoolOrReason {
    /// It can be sized.
    Pool(Pool),
    /// It cannot be sized; the reason.
    Reason(String),
}

impl PoolOrReason {
    /// Takes the pool as it is.
    pub fn take() -> PoolOrReason {
        match Pool::take() {
            Ok(pool) => PoolOrReason::Pool(pool),
            Err(error) => PoolOrReason::Reason(format!("{error:#}")),
        }
    }

    /// Gives the next runs a pool of `bytes`. Returns the reason if it could not.
    pub fn give(&mut self, bytes: Bytes) -> Option<String> {
        let outcome = match self {
            PoolOrReason::Pool(pool) => pool.set(bytes).map_err(|error| format!("{error:#}")),
            PoolOrReason::Reason(_) if bytes == Bytes::ZERO => Ok(()),
            PoolOrReason::Reason(reason) => Err(reason.clone()),
        };
        outcome.err().map(|why| format!("no pool of {bytes}: {why}"))
    }
}

/// Returns the handling of the pool for these cases, if the machine can give `can_give`.
pub(super) fn holding(cases: &[Case], peers: &[&Peer], can_give: Bytes) -> Holding {
    let most = |of: fn(&Case) -> Bytes| cases.iter().map(of).max().unwrap_or_default();
    // Pages of 1 GiB are no part of it: they are there for single runs.
    if peers.iter().all(|peer| peer.pool != Some(PageSize::HUGE_2M)) {
        Holding::None
    } else if most(|case| case.pool) + most(|case| case.memory) <= can_give {
        Holding::Kept
    } else {
        Holding::ByTurns
    }
}

/// Returns the peers in the order of a round.
pub(super) fn turns<'a>(holding: Holding, peers: &[&'a Peer]) -> Vec<&'a Peer> {
    let mut peers = peers.to_vec();
    if holding == Holding::ByTurns {
        peers.sort_by_key(|peer| peer.pool);
    }
    peers
}

/// Readiness of a run.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Prepared {
    /// It can begin; the reason, if its pool could not be set.
    Ready(Option<String>),
    /// Its pages are not available, and the reason: there is nothing to measure.
    Absent(String),
}

/// The pool of a bench that runs.
pub(super) struct Kept {
    pool: PoolOrReason,
    holding: Holding,
    /// Its size for all cases, if it is kept.
    whole: Bytes,
    /// Its last size, and the reason if it could not be set.
    now: Option<(Bytes, Option<String>)>,
    /// The pool of 1 GiB pages, empty but for the runs of peers that want it.
    gigantic: GiganticPool,
    /// True if memory is touched before it is measured.
    touches: bool,
}

impl Kept {
    pub(super) fn new(holding: Holding, cases: &[Case], touches: bool) -> Kept {
        let whole = cases.iter().map(|case| case.pool).max().unwrap_or_default();
        let gigantic = GiganticPool::default();
        Kept { pool: PoolOrReason::take(), holding, whole, now: None, gigantic, touches }
    }

    /// Prepares a run of `case` under `peer`.
    pub(super) fn prepare(&mut self, case: &Case, peer: &Peer) -> Prepared {
        // Before the pool of 2 MiB pages grows: a heap of any peer that finds pages of 1 GiB may
        // take them.
        self.gigantic.release();
        if peer.is_gigantic() {
            if let Err(why) = self.hold_beside(case, peer).and_then(|()| self.gigantic.give(case)) {
                return Prepared::Absent(why);
            }
            if self.touches {
                self.gigantic.touch(case);
            }
            return Prepared::Ready(None);
        }
        let short = self.hold(wanted(self.holding, self.whole, case, peer));
        // Memory that a run has freed goes back to the host: it is touched before each run.
        if self.touches && peer.pool.is_none() {
            warm::warm(case.memory, false);
        }
        Prepared::Ready(short.filter(|_| peer.pool.is_some()))
    }

    /// Tests if `case` can have its pages of 1 GiB under `peer`, and releases them. The error has
    /// the reason.
    pub(super) fn probe(&mut self, case: &Case, peer: &Peer) -> Result<(), String> {
        self.hold_beside(case, peer)?;
        self.gigantic.probe(case)
    }

    /// Sets the pool of 2 MiB pages, from which the remainder of a 1 GiB heap comes. The safe floor
    /// of memory limits it as well.
    fn hold_beside(&mut self, case: &Case, peer: &Peer) -> Result<(), String> {
        self.hold(wanted(self.holding, self.whole, case, peer)).map_or(Ok(()), Err)
    }

    /// Makes the pool of 2 MiB pages `bytes`. Returns the reason if it could not.
    fn hold(&mut self, bytes: Bytes) -> Option<String> {
        if self.now.as_ref().is_none_or(|(now, _)| *now != bytes) {
            let why = self.pool.give(bytes);
            if self.touches && bytes > Bytes::ZERO {
                warm::warm(bytes, true);
            }
            self.now = Some((bytes, why));
        }
        self.now.as_ref().and_then(|(_, why)| why.clone())
    }
}

/// Returns the size of the pool while `peer` runs.
fn wanted(holding: Holding, whole: Bytes, case: &Case, peer: &Peer) -> Bytes {
    match holding {
        Holding::Kept => whole,
        Holding::ByTurns | Holding::None if peer.is_gigantic() => {
            case.gigantic.map_or(Bytes::ZERO, |gigantic| gigantic.beside)
        }
        Holding::ByTurns if peer.pool.is_some() => case.pool,
        Holding::ByTurns | Holding::None => Bytes::ZERO,
    }
}

#[cfg(test)]
mod tests {
    use super::super::cases::Gigantic;
    use super::*;
    use crate::peers::GIGANTIC;
    use std::time::Duration;

    fn case(memory: u64, pool: u64) -> Case {
        let (memory, pool) = (Bytes::mib(memory), Bytes::mib(pool));
        Case {
            name: "x",
            title: "x".into(),
            arguments: Vec::new(),
            repeats: 1,
            memory,
            pool,
            gigantic: None,
            longest: Duration::MAX,
        }
    }

    fn peers() -> Vec<&'static Peer> {
        ["mimalloc3-large", "glibc", "megapage", "jemalloc-thp"].map(|name| Peer::named(name).unwrap()).into()
    }

    /// Counts the changes of the pool in two rounds.
    fn changes(holding: Holding, cases: &[Case]) -> usize {
        let (mut now, mut changes) = (None, 0);
        for _ in 0..2 {
            for case in cases {
                for peer in turns(holding, &peers()) {
                    let bytes = wanted(holding, Bytes::mib(400), case, peer);
                    changes += usize::from(now != Some(bytes));
                    now = Some(bytes);
                }
            }
        }
        changes
    }

    #[test]
    fn one_pool_is_kept_for_all_where_it_fits_beside_the_work() {
        let cases = [case(100, 200), case(300, 400)];
        assert_eq!(holding(&cases, &peers(), Bytes::mib(700)), Holding::Kept);
        assert_eq!(changes(Holding::Kept, &cases), 1, "set once, whatever the case and the peer");
        assert_eq!(turns(Holding::Kept, &peers()), peers());
        let base = [Peer::named("glibc").unwrap()];
        assert_eq!(holding(&cases, &base, Bytes::mib(700)), Holding::None);
        assert_eq!(wanted(Holding::None, Bytes::mib(400), &cases[0], base[0]), Bytes::ZERO);
    }

    #[test]
    fn pages_of_1_gib_come_last_and_have_what_they_leave_over_from_the_pool() {
        let gigantic = Peer::named(GIGANTIC).unwrap();
        let mut case = case(100, 200);
        case.gigantic = Some(Gigantic { pages: 1, beside: Bytes::mib(50) });
        let wanted = |holding| wanted(holding, Bytes::mib(400), &case, gigantic);
        assert_eq!(wanted(Holding::Kept), Bytes::mib(400), "the pool that is there stays as it is");
        assert_eq!([wanted(Holding::ByTurns), wanted(Holding::None)], [Bytes::mib(50); 2]);
        let peers = [gigantic, peers()[0], peers()[1]];
        let order: Vec<&str> = turns(Holding::ByTurns, &peers).iter().map(|peer| peer.name).collect();
        assert_eq!(order, ["glibc", "mimalloc3-large", GIGANTIC]);
        assert_eq!(holding(&[case], &[peers[0], peers[2]], Bytes::gib(9)), Holding::None);
    }

    #[test]
    fn where_it_does_not_fit_it_is_set_once_for_all_who_want_it_in_a_case_of_a_round() {
        let cases = [case(100, 200), case(300, 400)];
        assert_eq!(holding(&cases, &peers(), Bytes::mib(699)), Holding::ByTurns);
        let order: Vec<bool> =
            turns(Holding::ByTurns, &peers()).iter().map(|peer| peer.pool.is_some()).collect();
        assert_eq!(order, [false, false, true, true]);
        assert_eq!(
            changes(Holding::ByTurns, &cases),
            2 * 2 * 2,
            "taken back and set in each case of each round"
        );
    }
}
