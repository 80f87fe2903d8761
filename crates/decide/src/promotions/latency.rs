//! Calls on another process: the number of regions that one names, and the back-off after a slow
//! one.

use std::time::Duration;

/// Bounds on the time for which calls may hold another process's mmap lock, and the back-off after
/// longer ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// Most processor time of one call that splits huge pages. A process can wait for its mmap lock
    /// for that long, and for as long as the call waits for a processor. The number of regions that
    /// a call names follows from it. A call that collapses may take four times as much: it gives
    /// the lock up between two regions.
    pub call: Duration,
    /// Share of each call's time, in per cent, that is left to waiters for the lock after it; 1 ms
    /// at most.
    pub pause_percent: u32,
    /// Processor time for which the lock may be held before the process is backed off, longer each
    /// time. It is the time of one region in a collapse (on average over the call), and of the
    /// whole call in a split. Two other kinds of calls cause a back-off of the first length. In
    /// one, the regions together took more than this: one region may have taken all of it. The
    /// other took ten times as long on the wall clock: it waited, and the process may have waited,
    /// too.
    pub slow: Duration,
    /// First back-off of a process. It doubles with each further one, up to `pause_most`.
    pub pause: Duration,
    /// Longest back-off. After a slow call, it is also at most a hundred times the time of one
    /// region. The process then waits for 1 % of the time at most. Promotion comes to an end even
    /// on a machine on which each region is that slow.
    pub pause_most: Duration,
}

impl Default for Latency {
    fn default() -> Latency {
        Latency {
            call: Duration::from_millis(1),
            pause_percent: 25,
            slow: Duration::from_millis(15),
            pause: Duration::from_millis(100),
            pause_most: Duration::from_secs(30),
        }
    }
}

/// Times of one call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Call {
    /// Regions that it dealt with: those advised, and the one that it failed at.
    pub regions: usize,
    /// Time on the wall clock.
    pub took: Duration,
    /// Processor time. The other time was spent waiting, mostly for a processor.
    pub busy: Duration,
    /// Longest time for which the process's mmap lock was held without a break. A collapse gives it
    /// up between two regions; the other calls keep it to their end.
    pub held: Duration,
}

impl Call {
    /// Returns the processor time for which the process's mmap lock was held without a break. That
    /// is the time of one region if the lock was given up between regions, as in a collapse, else
    /// of all.
    fn busy_of_region(&self) -> Duration {
        if self.held < self.took { self.busy / self.regions.max(1) as u32 } else { self.busy }
    }
}

/// Factor by which a call that collapses may take longer than one that splits. A collapse gives the
/// lock up between two regions. It has every processor empty its LRU queues, which costs less if
/// done once for several regions.
const COLLAPSE_CALL: u32 = 4;
/// Most regions that one call names, however fast it is. If they turn out to be expensive, the next
/// call names one.
const MOST_REGIONS: usize = 16;
/// Multiple of a call's bound above which its regions count as much more expensive than before.
const MUCH_MORE_EXPENSIVE: u32 = 2;
/// Consecutive calls that were not slow after which the next pause is halved.
const CLEAN_CALLS: u32 = 64;

/// Multiple of [`Latency::slow`] that a call may take on the wall clock before its process is
/// backed off.
const LATE: u32 = 10;
/// Longest back-off after a slow call, as a multiple of the time of one of its regions.
const SHARE: u32 = 100;

/// A time without work that doubles each time it is started.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pause {
    /// End of the pause.
    pub until: Duration,
    times: u32,
    clean: u32,
}

impl Pause {
    pub fn is_over(&self, now: Duration) -> bool {
        now >= self.until
    }

    /// Starts a pause of `first`, doubled by the number of pauses before, at most `most`.
    pub fn start(&mut self, now: Duration, first: Duration, most: Duration) {
        self.until = now + doubled(first, self.times, most);
        self.times = self.times.saturating_add(1);
        self.clean = 0;
    }

    /// Starts the back-off after a call on a process, unless the call was fine.
    pub fn learn(&mut self, now: Duration, call: Call, latency: &Latency) -> Speed {
        let speed = Speed::of(call, latency);
        match speed {
            Speed::Fine => self.ease(),
            Speed::Slow => {
                let most = latency.pause_most.min(call.busy_of_region().saturating_mul(SHARE));
                self.start(now, latency.pause, most.max(latency.pause));
            }
            // This back-off always has the first length, and does not lengthen the next one.
            Speed::Late => self.until = self.until.max(now + latency.pause),
        }
        speed
    }

    /// Notes a success. `CLEAN_CALLS` of them in a row halve the next pause.
    pub fn ease(&mut self) {
        self.clean += 1;
        if self.clean >= CLEAN_CALLS {
            self.clean = 0;
            self.times = self.times.saturating_sub(1);
        }
    }
}

/// Returns `first`, doubled `times` times, at most `most`.
pub(super) fn doubled(first: Duration, times: u32, most: Duration) -> Duration {
    first.saturating_mul(1u32.checked_shl(times).unwrap_or(u32::MAX)).min(most)
}

/// Number of regions that the next call names: as many as take the time that one call may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch(usize);

impl Default for Batch {
    /// Returns one: nothing is known of a process before the first call.
    fn default() -> Batch {
        Batch(1)
    }
}

impl Batch {
    pub fn size(self) -> usize {
        self.0
    }

    /// Learns from the processor time of a call. Its bound is [`Latency::call`], or more if it
    /// `promotes`. The wall clock does not count. If others take the processor away, smaller
    /// batches make no call faster, and each batch has a fixed cost.
    pub fn learn(&mut self, call: Call, promotes: bool, latency: &Latency) {
        let most = if promotes { latency.call * COLLAPSE_CALL } else { latency.call };
        if call.busy > most * MUCH_MORE_EXPENSIVE {
            self.0 = 1;
        } else if call.busy > most {
            self.0 = (self.0 / 2).max(1);
        } else if call.regions == self.0 && call.busy * 4 <= most {
            self.0 = (self.0 * 2).min(MOST_REGIONS);
        } else if call.regions == self.0 && call.busy * 2 <= most {
            // Twice as many would still be in time, so one more is, too.
            self.0 = (self.0 + 1).min(MOST_REGIONS);
        }
    }
}

/// Meaning of a call's times for the next calls.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speed {
    /// Within the bounds.
    Fine,
    /// The work itself took too long: memory is fragmented, or not backed by the host. The
    /// back-offs get longer.
    Slow,
    /// The call waited for very long, for a processor or a device: megapage did not cause it, but
    /// it lasts for a while. Or several regions together took too long, and one of them may have
    /// taken all of it.
    Late,
}

impl Speed {
    fn of(call: Call, latency: &Latency) -> Speed {
        // A process waits for one region. If one is that expensive, the next call names no other.
        if call.busy_of_region() > latency.slow {
            Speed::Slow
        } else if call.busy > latency.slow || call.took > latency.slow * LATE {
            Speed::Late
        } else {
            Speed::Fine
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn call(regions: usize, microseconds: u64) -> Call {
        let took = Duration::from_micros(microseconds);
        Call { regions, took, busy: took, held: took }
    }

    #[test]
    fn a_batch_grows_to_the_time_of_a_call_and_shrinks_at_once() {
        let latency = Latency { call: Duration::from_millis(2), ..Latency::default() };
        let learn = |batch: &mut Batch, call| batch.learn(call, false, &latency);
        let mut batch = Batch::default();
        assert_eq!(batch.size(), 1);
        // 300 us a region: at four, twice as many would be late.
        for _ in 0..100 {
            let size = batch.size();
            learn(&mut batch, call(size, 300 * size as u64));
        }
        assert_eq!(batch.size(), 4);
        learn(&mut batch, call(4, 3_000));
        assert_eq!(batch.size(), 2);
        learn(&mut batch, call(2, 3_000));
        assert_eq!(batch.size(), 1);
        for _ in 0..100 {
            // Waiting for a processor is no reason for small batches.
            let size = batch.size();
            learn(&mut batch, Call { took: Duration::from_secs(1), ..call(size, 0) });
        }
        assert_eq!(batch.size(), MOST_REGIONS);
        // A short call says nothing about a long one.
        let mut batch = Batch(8);
        learn(&mut batch, call(1, 0));
        assert_eq!(batch.size(), 8);
        // If regions become much more expensive all at once, each gets a call.
        learn(&mut batch, call(8, 8 * 5_000));
        assert_eq!(batch.size(), 1);
    }

    #[test]
    fn slow_work_is_distinguished_from_waiting() {
        let latency = Latency::default();
        let (short, long) = (Duration::from_millis(1), Duration::from_secs(1));
        let of = |call| Speed::of(call, &latency);
        assert_eq!(of(call(1, 15_000)), Speed::Fine);
        assert_eq!(of(call(1, 15_001)), Speed::Slow);
        // Preempted for 100 ms: waiters for the lock waited, too, but a pause would not help.
        let preempted = Call { took: long / 10, held: long / 10, busy: short, ..call(1, 0) };
        assert_eq!(of(preempted), Speed::Fine);
        assert_eq!(of(Call { took: long, held: long, busy: short, ..call(1, 0) }), Speed::Late);
        // Ten regions, with the lock given up between them: one may have taken all of the time.
        // With the lock held to the end: all of them.
        let many = |held| Call { regions: 10, took: long / 10, held, busy: long / 10 };
        assert_eq!((of(many(long / 100)), of(many(long / 10))), (Speed::Late, Speed::Slow));
        let expensive = Call { regions: 10, took: long, held: long / 10, busy: long };
        assert_eq!(of(expensive), Speed::Slow);
        assert_eq!(of(call(0, 0)), Speed::Fine);
    }

    #[test]
    fn pauses_double_up_to_a_bound_and_are_forgotten_slowly() {
        let latency = Latency::default();
        let mut pause = Pause::default();
        assert!(pause.is_over(Duration::ZERO));
        let length = |pause: &mut Pause| {
            let now = Duration::from_secs(1000);
            pause.start(now, latency.pause, latency.pause_most);
            let mut length = Duration::ZERO;
            while !pause.is_over(now + length) {
                length += Duration::from_millis(100);
            }
            length.as_millis()
        };
        assert_eq!([(); 4].map(|()| length(&mut pause)), [100, 200, 400, 800]);
        for _ in 0..CLEAN_CALLS {
            pause.ease();
        }
        assert_eq!(length(&mut pause), 800);
        for _ in 0..100 {
            length(&mut pause);
        }
        assert_eq!(length(&mut pause), latency.pause_most.as_millis());
        let now = Duration::from_secs(5000);
        // A slow machine: 20 ms for each region.
        pause.learn(now, call(1, 20_000), &latency);
        assert_eq!(pause.until, now + Duration::from_secs(2));
        pause.learn(now, call(1, 1_000_000), &latency);
        assert_eq!(pause.until, now + latency.pause_most);
        let now = Duration::from_secs(6000);
        let waited = Call { took: Duration::from_secs(1), ..call(1, 0) };
        assert_eq!(pause.learn(now, waited, &latency), Speed::Late);
        assert!(!pause.is_over(now) && pause.is_over(now + latency.pause));
    }
}
