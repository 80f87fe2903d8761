//! How fast a process is acted on: the size of a batch, and when it is left alone.

use super::ExecutorOptions;
use crate::engine::Call;
use std::time::Duration;

/// Most regions that one call names, however fast it is.
const MOST_REGIONS: usize = 32;
/// Calls in a row that were not slow, after which the next pause is half as long again.
const CLEAN_CALLS: u32 = 64;

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

    pub fn start(&mut self, now: Duration, options: &ExecutorOptions) {
        let factor = 1u32.checked_shl(self.times).unwrap_or(u32::MAX);
        self.until = now + options.pause.saturating_mul(factor).min(options.pause_most);
        self.times = self.times.saturating_add(1);
        self.clean = 0;
    }

    /// Something went well.
    pub fn ease(&mut self) {
        self.clean += 1;
        if self.clean >= CLEAN_CALLS {
            self.clean = 0;
            self.times = self.times.saturating_sub(1);
        }
    }

    /// Everything is well again.
    pub fn end(&mut self) {
        *self = Pause::default();
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

    /// Learns how long a call took, which is to take `most`; whether it held the process up for too long.
    pub fn learn(&mut self, call: Call, most: Duration, options: &ExecutorOptions) -> bool {
        if call.took > most || call.held > options.slow {
            self.0 = (self.0 / 2).max(1);
        } else if call.regions == self.0 && call.took * 2 <= most {
            // Twice as many would still be in time; one more certainly.
            self.0 = (self.0 + 1).min(MOST_REGIONS);
        }
        call.held > options.slow
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MOST: Duration = Duration::from_millis(2);

    fn call(regions: usize, microseconds: u64) -> Call {
        let took = Duration::from_micros(microseconds);
        Call { regions, took, held: took, refused: None, at: None }
    }

    #[test]
    fn a_batch_grows_to_the_time_of_a_call_and_shrinks_at_once() {
        let options = ExecutorOptions::default();
        let mut batch = Batch::default();
        assert_eq!(batch.size(), 1);
        // 300 us a region: at four, twice as many would be late.
        for _ in 0..100 {
            assert!(!batch.learn(call(batch.size(), 300 * batch.size() as u64), MOST, &options));
        }
        assert_eq!(batch.size(), 4);
        assert!(!batch.learn(call(4, 5_000), MOST, &options));
        assert_eq!(batch.size(), 2);
        assert!(batch.learn(call(2, 15_001), MOST, &options));
        assert!(batch.learn(call(1, 1_000_000), MOST, &options));
        assert_eq!(batch.size(), 1);
        for _ in 0..100 {
            batch.learn(call(batch.size(), 0), MOST, &options);
        }
        assert_eq!(batch.size(), MOST_REGIONS);
        // A short call says nothing about a long one.
        let mut batch = Batch(8);
        batch.learn(call(1, 0), MOST, &options);
        assert_eq!(batch.size(), 8);
    }

    #[test]
    fn pauses_double_up_to_a_bound_and_are_forgotten_slowly() {
        let options = ExecutorOptions::default();
        let mut pause = Pause::default();
        assert!(pause.is_over(Duration::ZERO));
        let length = |pause: &mut Pause| {
            let now = Duration::from_secs(1000);
            pause.start(now, &options);
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
        assert_eq!(length(&mut pause), options.pause_most.as_millis());
        pause.end();
        assert_eq!(length(&mut pause), 100);
    }
}
