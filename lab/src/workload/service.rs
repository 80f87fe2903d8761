//! A service whose requests the kernel counts: each ends with a write of one byte. The effect of
//! huge pages on it is known from the work of a request.

use super::idle;
use super::requests::READY;
use anyhow::{Context, Result, ensure};
use megapage_bench::random::{Random, mix};
use megapage_kernel::KernelRoot;
use megapage_kernel::process::read_own_status;
use megapage_units::{BASE_PAGE, Bytes};
use std::fs::File;
use std::hint::black_box;
use std::io::Write;
use std::time::{Duration, Instant};

megapage_units::named! {
    /// Work of a request.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
    pub enum Kind {
        /// Random reads in all of the memory, each of which waits for the one before.
        Random = "random",
        /// Follows links from page to page, one in each page, in an order without a pattern, like a
        /// walk over the page headers of a buffer pool. The caches hold the links; no TLB holds the
        /// pages.
        Linked = "linked",
        /// As `random`, in a part that caches and TLB cover.
        Small = "small",
        /// Reads one word after the other.
        Sequential = "sequential",
        /// Small matrices in the caches.
        Compute = "compute",
        /// A cache that keeps within a budget of resident memory: it holds fewer entries when more
        /// memory is resident. Two base pages in five of its memory are never touched: on huge
        /// pages they are resident as well.
        Budgeted = "budgeted",
    }
}

/// Options of the service.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// The work of a request.
    pub kind: Kind,
    /// Its memory.
    pub size: Bytes,
    /// The share of a request that reaches the memory. For a cache, the additional cost of an entry
    /// that it does not hold: 0 to 1.
    pub share: f64,
}

/// Steps of a request: a fraction of a millisecond in all.
const STEPS: u64 = 2000;
/// Rounds of arithmetic in the place of a read, in a request that does not reach the memory.
const ROUNDS: u64 = 24;
/// Bytes that caches and TLB cover.
const COVERED: usize = 128 << 10;
/// Time between two looks of a cache at its resident memory.
const LOOK: Duration = Duration::from_millis(50);
/// Base pages of each five that a cache touches.
const TOUCHED: usize = 3;
/// Words of a base page, and of a line of the caches.
const WORDS: usize = BASE_PAGE / 8;
const LINE: usize = 64 / 8;

struct Service {
    kind: Kind,
    share: f64,
    memory: Vec<u64>,
    random: Random,
    at: usize,
    sum: u64,
    /// Resident bytes that a cache may have, and the share of its entries that it holds.
    budget: f64,
    held: f64,
    looked: Instant,
}

impl Service {
    fn prepare(options: &Options) -> Result<Service> {
        let words = usize::try_from(options.size.0 / 8).context("more than fits an address space")?;
        ensure!(words >= COVERED / 8, "at least {} are needed", Bytes(COVERED as u64));
        // Not touched by the allocator: the pages come from the kernel.
        let mut memory = vec![0u64; words];
        let touched = |page: usize| options.kind != Kind::Budgeted || page % 5 < TOUCHED;
        // Random reads use memory that was touched out of order, as after some time of use. In
        // order, some processors would hold consecutive page frames in one TLB entry.
        let pages = memory.len() / WORDS;
        let mut order: Vec<usize> = (0..pages).filter(|page| touched(*page)).collect();
        let mut random = Random::new(61);
        if matches!(options.kind, Kind::Random | Kind::Linked) {
            random.shuffle(&mut order);
        }
        for at in &order {
            let page = &mut memory[at * WORDS..(at + 1) * WORDS];
            page.iter_mut().enumerate().for_each(|(word, to)| *to = mix((at * WORDS + word) as u64));
        }
        let mut at = 0;
        if options.kind == Kind::Linked {
            random.shuffle(&mut order);
            // At a different line in each page: at the same one they would share a few sets of the
            // caches.
            let place = |page: usize| page * WORDS + page * LINE % WORDS;
            at = place(order[0]);
            for (page, next) in order.iter().zip(order.iter().cycle().skip(1)) {
                memory[place(*page)] = place(*next) as u64;
            }
        }
        let resident = resident()?;
        Ok(Service {
            kind: options.kind,
            share: options.share,
            memory,
            random,
            at,
            sum: 0,
            // A tenth more than it has now.
            budget: 1.1 * resident,
            held: 1.0,
            looked: Instant::now(),
        })
    }

    fn request(&mut self) -> Result<()> {
        match self.kind {
            Kind::Random => self.reads(self.memory.len()),
            Kind::Linked => self.follow(),
            Kind::Small => self.reads(COVERED / 8),
            Kind::Sequential => {
                for _ in 0..STEPS * 4 {
                    self.sum = self.sum.wrapping_mul(31).wrapping_add(self.memory[self.at]);
                    self.at = (self.at + 1) % self.memory.len();
                }
            }
            Kind::Compute => self.sum ^= idle::compute(1).to_bits(),
            Kind::Budgeted => self.look_up()?,
        }
        black_box(self.sum);
        Ok(())
    }

    /// Returns true if a step of a request reaches the memory. The share says how many do; they are
    /// spread evenly.
    fn reaches(&self, step: u64) -> bool {
        let reaching = (STEPS as f64 * self.share) as u64;
        step * reaching / STEPS != (step + 1) * reaching / STEPS
    }

    fn follow(&mut self) {
        for step in 0..STEPS {
            if self.reaches(step) {
                self.at = self.memory[self.at] as usize;
                self.sum = self.sum.wrapping_add(self.at as u64);
            } else {
                self.arithmetic();
            }
        }
    }

    fn reads(&mut self, words: usize) {
        for step in 0..STEPS {
            if self.reaches(step) {
                let at = mix(self.sum ^ step) as usize % words;
                self.sum = self.sum.wrapping_add(self.memory[at]);
            } else {
                self.arithmetic();
            }
        }
    }

    fn arithmetic(&mut self) {
        for _ in 0..ROUNDS {
            self.sum = mix(self.sum);
        }
    }

    /// Uses an entry of the cache: one that it does not hold is computed again.
    fn look_up(&mut self) -> Result<()> {
        if self.looked.elapsed() >= LOOK {
            self.looked = Instant::now();
            self.held = (self.budget / resident()?).min(1.0);
        }
        let missed = !self.random.chance(self.held);
        let more = if missed { (STEPS as f64 * self.share * 4.0) as u64 } else { 0 };
        (0..STEPS + more).for_each(|_| self.arithmetic());
        Ok(())
    }
}

fn resident() -> Result<f64> {
    Ok(read_own_status(&KernelRoot::live()).context("what is resident")?.rss.0 as f64)
}

/// Says that it is ready, and serves requests until it is killed.
pub fn run(options: &Options, mut output: impl Write) -> Result<()> {
    let mut service = Service::prepare(options)?;
    let mut sink = File::options().write(true).open("/dev/null").context("/dev/null")?;
    writeln!(output, "{READY}").and_then(|()| output.flush()).context("standard output")?;
    loop {
        service.request()?;
        sink.write_all(b".").context("/dev/null")?;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn service(kind: Kind, share: f64) -> Service {
        Service::prepare(&Options { kind, size: Bytes::mib(10), share }).unwrap()
    }

    #[test]
    fn a_cache_that_has_more_resident_memory_holds_less() {
        let mut cache = service(Kind::Budgeted, 0.5);
        cache.request().unwrap();
        assert_eq!(cache.held, 1.0);
        cache.budget /= 2.0;
        cache.looked -= LOOK;
        cache.request().unwrap();
        assert!(cache.held < 0.8, "{}", cache.held);
        let touched = cache.memory.chunks(WORDS).filter(|page| page.iter().any(|word| *word != 0)).count();
        assert_eq!(touched * 5, (10 << 20) / BASE_PAGE * TOUCHED);
    }

    #[test]
    fn requests_of_all_kinds_end_and_reach_what_they_should() {
        for kind in [Kind::Random, Kind::Linked, Kind::Small, Kind::Sequential, Kind::Compute] {
            let mut service = service(kind, 0.25);
            let before = service.sum;
            (0..3).for_each(|_| service.request().unwrap());
            assert_ne!(service.sum, before, "{kind:?}");
        }
        assert!(Service::prepare(&Options { kind: Kind::Small, size: Bytes(4096), share: 1.0 }).is_err());
    }
}
