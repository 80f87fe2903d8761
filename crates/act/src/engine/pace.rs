//! How fast a process is acted on: the size of a batch, and when it is left alone.

use super::answer::Call;
use std::time::Duration;

/// How long calls on another process may hold its mmap lock, and how long it is left alone where they have held it for longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Latency {
    /// How much processor time one call that splits huge pages is to take at most: for that long, and for as long as it
    /// waits for a processor, a process can wait for its mmap lock. How many regions a call names follows from it. A
    /// call that collapses may take four times as much: it gives the lock up between two regions.
    pub call: Duration,
    /// After each call, this share of its time, in per cent, is left to waiters for the lock; 1 ms at most.
    pub pause_percent: u32,
    /// A process whose lock was held for more processor time than this, by the collapse of a region (on average, where a
    /// call names several) or by a call that splits, is left alone for a while, longer each time. So it is, for the first
    /// of these times, after a call whose regions took more together, of which one may have taken all of it, and after one
    /// that took ten times as long on the wall: it waited, and the process may have, too.
    pub slow: Duration,
    /// The first time for which a process, or after a refusal for lack of memory all promotions, are left alone. It
    /// doubles each time that this happens again...
    pub pause: Duration,
    /// ...up to this, and after a slow call up to a hundred times what a region took: then the process can wait for 1 % of
    /// the time at most, and on a machine on which each region is that slow promotion still comes to an end.
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

/// Most regions that one call names, however fast it is: should each turn out to be expensive, the next call names one.
const MOST_REGIONS: usize = 16;
/// A call that took so many times as long as it is to take says that a region is much more expensive than it was.
const MUCH_MORE_EXPENSIVE: u32 = 2;
/// Calls in a row that were not slow, after which the next pause is half as long again.
const CLEAN_CALLS: u32 = 64;

/// How many times as long as a slow call one may wait before its process is left alone.
const LATE: u32 = 10;
/// The longest pause after a slow call, in times of what a region of it took.
const SHARE: u32 = 100;

/// A time without work that doubles each time it is started.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Pause {
    until: Duration,
    times: u32,
    clean: u32,
}

impl Pause {
    pub fn is_over(&self, now: Duration) -> bool {
        now >= self.until
    }

    /// Its end.
    pub fn until(&self) -> Duration {
        self.until
    }

    pub fn start(&mut self, now: Duration, latency: &Latency) {
        self.start_within(now, latency, latency.pause_most);
    }

    /// After a slow call.
    pub fn start_after(&mut self, call: Call, now: Duration, latency: &Latency) {
        let most = latency.pause_most.min(call.busy_of_region().saturating_mul(SHARE));
        self.start_within(now, latency, most.max(latency.pause));
    }

    fn start_within(&mut self, now: Duration, latency: &Latency, most: Duration) {
        let factor = 1u32.checked_shl(self.times).unwrap_or(u32::MAX);
        self.until = now + latency.pause.saturating_mul(factor).min(most);
        self.times = self.times.saturating_add(1);
        self.clean = 0;
    }

    /// The first pause again, however many there were: the next is no longer for it.
    pub fn start_once(&mut self, now: Duration, latency: &Latency) {
        self.until = self.until.max(now + latency.pause);
    }

    /// Something went well.
    pub fn ease(&mut self) {
        self.clean += 1;
        if self.clean >= CLEAN_CALLS {
            self.clean = 0;
            self.times = self.times.saturating_sub(1);
        }
    }
}

/// How many regions the next call names: as many as it takes the time that one call may take.
#[derive(Clone, Copy, Debug)]
pub(super) struct Batch(usize);

impl Default for Batch {
    /// One: nothing is known of a process before the first call.
    fn default() -> Batch {
        Batch(1)
    }
}

impl Batch {
    pub fn size(self) -> usize {
        self.0
    }

    /// Learns how long a call took, which is to take `most` of a processor. Not by the clock on the wall: where others
    /// take the processor away, smaller batches would not make a call any sooner, and each has its own cost.
    pub fn learn(&mut self, call: Call, most: Duration) {
        if call.busy > most * MUCH_MORE_EXPENSIVE {
            self.0 = 1;
        } else if call.busy > most {
            self.0 = (self.0 / 2).max(1);
        } else if call.regions == self.0 && call.busy * 4 <= most {
            self.0 = (self.0 * 2).min(MOST_REGIONS);
        } else if call.regions == self.0 && call.busy * 2 <= most {
            // Twice as many would still be in time; one more certainly.
            self.0 = (self.0 + 1).min(MOST_REGIONS);
        }
    }
}

/// What a call says about the next ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Speed {
    /// As it should be.
    Fine,
    /// The work itself took too long: memory is fragmented, or not backed by the host. The pauses get longer.
    Slow,
    /// It waited for very long, for a processor or a device: that is not of our making, but lasts for a while. Or several
    /// regions together took too long, of which one may have taken all of it.
    Late,
}

impl Speed {
    pub fn of(call: Call, latency: &Latency) -> Speed {
        // What a process waits for is one region, and where one is that expensive, the next call names no other.
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

    const MOST: Duration = Duration::from_millis(2);

    fn call(regions: usize, microseconds: u64) -> Call {
        let took = Duration::from_micros(microseconds);
        Call { regions, took, busy: took, held: took, refused: None, failed: false, at: None }
    }

    #[test]
    fn a_batch_grows_to_the_time_of_a_call_and_shrinks_at_once() {
        let mut batch = Batch::default();
        assert_eq!(batch.size(), 1);
        // 300 us a region: at four, twice as many would be late.
        for _ in 0..100 {
            batch.learn(call(batch.size(), 300 * batch.size() as u64), MOST);
        }
        assert_eq!(batch.size(), 4);
        batch.learn(call(4, 3_000), MOST);
        assert_eq!(batch.size(), 2);
        batch.learn(call(2, 3_000), MOST);
        assert_eq!(batch.size(), 1);
        for _ in 0..100 {
            // Waiting for a processor is no reason for small batches.
            batch.learn(Call { took: Duration::from_secs(1), ..call(batch.size(), 0) }, MOST);
        }
        assert_eq!(batch.size(), MOST_REGIONS);
        // A short call says nothing about a long one.
        let mut batch = Batch(8);
        batch.learn(call(1, 0), MOST);
        assert_eq!(batch.size(), 8);
        // Where regions are much more expensive all at once, each gets a call.
        batch.learn(call(8, 8 * 5_000), MOST);
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
        // Ten regions, the lock given up between them: one may have taken all of it. Held to the end: all of them.
        let many = |held| Call { regions: 10, took: long / 10, held, busy: long / 10, ..call(1, 0) };
        assert_eq!((of(many(long / 100)), of(many(long / 10))), (Speed::Late, Speed::Slow));
        let expensive = Call { regions: 10, took: long, held: long / 10, busy: long, ..call(1, 0) };
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
            pause.start(now, &latency);
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
        pause.start_after(call(1, 20_000), now, &latency);
        assert_eq!(pause.until(), now + Duration::from_secs(2));
        pause.start_after(call(1, 1_000_000), now, &latency);
        assert_eq!(pause.until(), now + latency.pause_most);
        let now = Duration::from_secs(6000);
        pause.start_once(now, &latency);
        assert!(!pause.is_over(now) && pause.is_over(now + latency.pause));
    }
}
