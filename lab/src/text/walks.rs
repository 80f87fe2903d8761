//! Share of its time that a program may spend on address translation of its code. The processor
//! sets the accessed bit of a page when it looks the page up in the page table. Bits that were
//! cleared and are set again a millisecond later are therefore look-ups. A page that the processor
//! still has in one of its buffers does not count.

use super::{Bench, CASES, TextFound, Way, program};
use crate::bench::Spread;
use anyhow::Result;
use megapage_kernel::clear_refs::clear_accessed;
use megapage_kernel::smaps::read_smaps;
use megapage_kernel::{KernelRoot, cpu_time_of};
use megapage_units::{BASE_PAGE, Pid};
use serde::Serialize;
use std::path::Path;
use std::time::Duration;

/// Time between the clearing of the bits and the look at them. A page that is looked up twice in
/// that time counts once: the processor would have to evict it in between.
const WINDOW: Duration = Duration::from_millis(1);
/// Least processor time in a window: with less the process was waiting.
const LEAST: Duration = Duration::from_micros(300);
/// Pause between windows: the walk over the page tables holds the process up.
const PAUSE: Duration = Duration::from_millis(10);
/// Hot pages of the generated program at which nearly each call looks a page up.
const MANY: u32 = 8192;
/// Number of such measurements, and their calls.
const TIMES: u32 = 5;
const CALLS: &str = "1000000";

/// Fewest windows of a measurement.
const LEAST_WINDOWS: usize = 10;

/// Look-ups of code in the page table.
#[derive(Clone, Debug, Serialize)]
pub struct Walks {
    /// The case.
    pub case: &'static str,
    /// Base pages of the program's own code that were looked up in a millisecond of its processor
    /// time, on base pages: of each window.
    pub pages_per_ms: Vec<f64>,
    /// Nanoseconds that the generated program saves with each call if each is to another of 8,192
    /// pages; `None` if it could not be measured.
    pub walk_ns: Option<f64>,
}

impl Walks {
    /// Returns the pages in a millisecond, in the median; `None` for too few windows.
    pub(super) fn pages(&self) -> Option<f64> {
        let enough = self.pages_per_ms.len() >= LEAST_WINDOWS;
        enough.then(|| Spread::median_of(&self.pages_per_ms))?
    }

    /// Returns the share of its processor time that the look-ups take.
    pub(super) fn share(&self) -> Option<f64> {
        Some((self.pages()? * self.walk_ns? / 1e6).clamp(0.0, 0.99))
    }

    /// Returns the factor by which the program would be faster without any, all else being the
    /// same.
    pub(super) fn could_gain(&self) -> Option<f64> {
        Some(1.0 / (1.0 - self.share()?))
    }
}

/// Measures one window: the pages of `file` that `pid` executed from and looked up, for a
/// millisecond of its processor time. `None` if it has ended, was waiting, or may not be inspected.
pub(super) fn sample(pid: Pid, file: &Path) -> Option<f64> {
    let root = KernelRoot::live();
    std::thread::sleep(PAUSE);
    let before = cpu_time_of(pid).ok()?;
    clear_accessed(&root, pid).ok()?;
    std::thread::sleep(WINDOW);
    let mappings = read_smaps(&root, pid).ok()?;
    let ran = cpu_time_of(pid).ok()?.checked_sub(before)?;
    let mut code =
        mappings.iter().filter(|it| it.permissions.contains('x') && Path::new(&it.name) == file).peekable();
    // It has not executed the file yet, or the file has another name.
    code.peek()?;
    let bytes: u64 = code.map(|it| it.referenced.0).sum();
    (ran >= LEAST).then(|| (bytes / BASE_PAGE as u64) as f64 / (ran.as_secs_f64() * 1e3))
}

impl Bench<'_> {
    /// Returns the nanoseconds of a look-up on this machine: the generated program's saving.
    pub(super) fn walk_ns(&mut self, report: &TextFound) -> Result<Option<f64>> {
        if self.walk_ns.is_some() {
            return Ok(self.walk_ns);
        }
        let measured = |way: &str| {
            let row = report.rows.iter().find(|row| row.case == CASES[0] && row.way == way)?;
            Spread::median_of(row.ns.get(&MANY.to_string())?)
        };
        let (plain, primed) = match (measured("none"), measured("file")) {
            (Some(plain), Some(primed)) => (Some(plain), Some(primed)),
            _ => {
                (self.progress)("what it takes to look up a page of code");
                let program = program::build(self.directory.path(), "walks")?;
                let arguments = [program.to_string_lossy().into_owned(), CALLS.into(), MANY.to_string()];
                let (mut plain, mut primed) = (Vec::new(), Vec::new());
                for _ in 0..TIMES {
                    for (way, times) in [(Way::BASELINE, &mut plain), (Way::Run("file"), &mut primed)] {
                        let _draw = self.draw(&program, way == Way::Run("file"))?;
                        let ran = self.start(way, &arguments)?;
                        let ns = ran.printed.split_whitespace().nth(1).and_then(|ns| ns.parse::<f64>().ok());
                        times.extend(ns);
                    }
                }
                (Spread::median_of(&plain), Spread::median_of(&primed))
            }
        };
        self.walk_ns = plain.zip(primed).map(|(plain, primed)| (plain - primed).max(0.0));
        Ok(self.walk_ns)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_could_be_gained_follows_from_look_ups_and_their_price() {
        let walks = |pages_per_ms: Vec<f64>, walk_ns| Walks { case: "cc1plus", pages_per_ms, walk_ns };
        let some = walks([4000.0, 5000.0, 9000.0].repeat(4), Some(20.0));
        assert_eq!((some.pages(), some.share()), (Some(5000.0), Some(0.1)));
        assert!((some.could_gain().unwrap() - 1.0 / 0.9).abs() < 1e-12);
        // Without a measurement there is no verdict.
        assert_eq!(walks(vec![0.0; LEAST_WINDOWS - 1], Some(20.0)).could_gain(), None);
        assert_eq!(walks(vec![0.0; LEAST_WINDOWS], None).could_gain(), None);
        assert_eq!(walks(vec![0.0; LEAST_WINDOWS], Some(20.0)).could_gain(), Some(1.0));
        // More than all of its time: the walks overlap with work.
        assert!(walks(vec![1e6; LEAST_WINDOWS], Some(20.0)).could_gain().unwrap() <= 100.0 + 1e-9);
    }

    /// Checks that a process that is gone is skipped.
    #[test]
    fn nothing_is_reported_of_a_process_that_is_gone() {
        assert_eq!(sample(Pid(i32::MAX), Path::new("/")), None);
    }
}
