//! The results of a user's command, as data and in one sentence.

use super::Options;
use super::measure::{Heap, Took};
use super::ways::{PLAIN, Way};
use crate::head::Head;
use crate::statistics::{Clock, Interval, Spent, Spread, milliseconds};
use megapage_units::shown::shell_word;
use serde::Serialize;

/// Coverage that intervals are to reach.
const WANTED: f64 = 0.95;

/// The whole bench: `megapage.bench/1`.
#[derive(Clone, Debug, Serialize)]
pub struct CommandReport {
    /// The head of every report.
    #[serde(flatten)]
    pub head: Head,
    /// The command, as shell words.
    pub command: String,
    /// Rounds that count. One uncounted round went before them.
    pub runs: u32,
    /// The seed that selected the order within each round.
    pub seed: u64,
    /// The clock that the finding is taken from.
    pub clock: Clock,
    /// One entry for each requested way, in the table's order.
    pub ways: Vec<WayReport>,
    /// The verdict.
    pub finding: Option<Finding>,
}

/// One way.
#[derive(Clone, Debug, Default, Serialize)]
pub struct WayReport {
    /// Its name.
    pub way: &'static str,
    /// A description in a few words.
    pub what: &'static str,
    /// The command line of this way, as shell words.
    pub recipe: String,
    /// The reason why it did not run; `None` if it did.
    pub absent: Option<String>,
    /// Seconds by the clock on the wall.
    pub wall_seconds: Option<Spread>,
    /// Processor seconds of the command and of its children that it waited for.
    pub cpu_seconds: Option<Spread>,
    /// The largest resident memory of any one of its processes, plus the hugetlb pages that were
    /// seen.
    pub peak_bytes: Option<Spread>,
    /// Ratios to the plain runs of the same rounds; `None` for the plain way itself.
    pub of_plain: Option<Ratios>,
    /// Resident heap at its largest, in the uncounted round; `None` if no heap was seen.
    pub heap_bytes: Option<u64>,
    /// The share of that heap on huge pages.
    pub huge_share: Option<f64>,
    /// Bytes of that heap on hugetlb pages, which resident memory does not include.
    pub hugetlb_bytes: u64,
    /// Every counted run, by round.
    pub samples: Samples,
}

/// Ratios to the plain runs of the same rounds: medians, with intervals of 95 %. Below 1 is less.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Ratios {
    /// Ratio of wall-clock time.
    pub wall: Interval,
    /// Ratio of processor time.
    pub cpu: Interval,
    /// Ratio of peak memory.
    pub peak: Interval,
}

/// Every counted run, by round.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Samples {
    /// Times.
    pub spent: Vec<Spent>,
    /// Peak memory.
    pub peak_bytes: Vec<u64>,
}

/// The verdict on one way.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Finding {
    /// The way that it is about.
    pub way: &'static str,
    /// `gain`, `loss` or `none`, as the interval shows; `too-few-rounds` if its coverage is too
    /// low.
    pub found: &'static str,
    /// Ratio of the time by the report's clock to that of the plain runs.
    pub of_plain: Interval,
    /// The verdict in one sentence.
    pub sentence: String,
}

impl CommandReport {
    /// Returns a report without measurements.
    pub(super) fn begin(options: &Options, ways: &[Way], head: Head) -> CommandReport {
        let words = options.command.iter().map(|word| shell_word(&word.to_string_lossy()));
        let way = |way: &Way| WayReport {
            way: way.name,
            what: way.what,
            recipe: way.recipe(&options.options, &options.command),
            absent: way.absence(),
            ..WayReport::default()
        };
        CommandReport {
            head,
            command: words.collect::<Vec<_>>().join(" "),
            runs: options.runs,
            seed: options.seed,
            clock: options.clock,
            ways: ways.iter().map(way).collect(),
            finding: None,
        }
    }

    fn row(&mut self, way: &Way) -> Option<&mut WayReport> {
        self.ways.iter_mut().find(|row| row.way == way.name)
    }

    /// Records the heap of the uncounted round.
    pub(super) fn note_heap(&mut self, way: &Way, heap: Heap) {
        if let Some(row) = self.row(way) {
            row.huge_share = heap.huge_share();
            row.heap_bytes = row.huge_share.map(|_| heap.resident);
            row.hugetlb_bytes = heap.hugetlb;
        }
    }

    /// Records a counted run.
    pub(super) fn note(&mut self, way: &Way, took: &Took) {
        if let Some(row) = self.row(way) {
            row.samples.spent.push(took.spent);
            row.samples.peak_bytes.push(took.max_rss.0 + row.hugetlb_bytes);
        }
    }

    /// Computes spreads, ratios and the finding from the samples.
    pub(super) fn finish(&mut self) {
        let plain = self.ways.iter().find(|row| row.way == PLAIN).map(|row| row.samples.clone());
        let plain = plain.unwrap_or_default();
        for row in self.ways.iter_mut().filter(|row| row.absent.is_none()) {
            let spent = &row.samples.spent;
            row.wall_seconds = Spread::of(spent.iter().map(|spent| spent.wall_ns as f64 / 1e9));
            row.cpu_seconds = Spread::of(spent.iter().map(|spent| spent.cpu_ns as f64 / 1e9));
            row.peak_bytes = Spread::of(row.samples.peak_bytes.iter().map(|bytes| *bytes as f64));
            row.of_plain = (row.way != PLAIN).then(|| ratios(&row.samples, &plain)).flatten();
        }
        // The finding is about megapage if it ran, else about the first other way with ratios.
        let ours = ["ours", "thp"];
        let judged = ours.iter().find_map(|name| self.ways.iter().find(|row| row.way == *name));
        let judged = judged.or_else(|| self.ways.iter().find(|row| row.of_plain.is_some()));
        self.finding = judged.and_then(|row| Some(finding(row.way, row.of_plain?, self.clock)));
    }
}

/// Returns the ratios of two ways, paired by round.
fn ratios(own: &Samples, plain: &Samples) -> Option<Ratios> {
    let of = |own: Vec<f64>, plain: Vec<f64>| {
        // A clock that did not move gives no ratio.
        let pairs = own.into_iter().zip(plain).filter(|(own, plain)| *own > 0.0 && *plain > 0.0);
        Interval::of(pairs.map(|(own, plain)| own / plain), WANTED)
    };
    let times = |samples: &Samples, clock: Clock| samples.spent.iter().map(|one| clock.of(one)).collect();
    let bytes = |samples: &Samples| samples.peak_bytes.iter().map(|bytes| *bytes as f64).collect();
    Some(Ratios {
        wall: of(times(own, Clock::Wall), times(plain, Clock::Wall))?,
        cpu: of(times(own, Clock::Cpu), times(plain, Clock::Cpu))?,
        peak: of(bytes(own), bytes(plain))?,
    })
}

/// Returns the finding that the ratios of a way give.
fn finding(way: &'static str, ratios: Ratios, clock: Clock) -> Finding {
    let (ratio, time) = match clock {
        Clock::Wall => (ratios.wall, "time"),
        Clock::Cpu => (ratios.cpu, "processor time"),
    };
    let who = match way {
        "ours" | "thp" => "megapage",
        other => other,
    };
    // The inverse swaps the interval's ends.
    let times = |value: f64| format!("{:.2}", 1.0 / value);
    let interval = format!("{:.0} % interval", 100.0 * ratio.coverage);
    let memory = match ratios.peak.median {
        more if more > 1.02 => format!(", for {more:.2} times its peak memory"),
        less if less < 0.98 => format!(", with {less:.2} times its peak memory"),
        _ => String::new(),
    };
    let share =
        format!("{:.2} of its {time} ({interval} {:.2} to {:.2})", ratio.median, ratio.low, ratio.high);
    let (found, sentence) = if ratio.coverage < WANTED {
        (
            "too-few-rounds",
            format!("too few rounds to tell: with {who} the command took {share}; give --runs 6 or more"),
        )
    } else if ratio.high < 1.0 {
        let from = format!("{} to {}", times(ratio.high), times(ratio.low));
        let gain = times(ratio.median);
        let what = match clock {
            Clock::Wall => format!("makes this command {gain} times as fast ({interval} {from})"),
            Clock::Cpu => format!("makes this command take {share}"),
        };
        ("gain", format!("{who} {what}{memory}"))
    } else if ratio.low > 1.0 {
        ("loss", format!("{who} makes this command slower: it takes {share}{memory}"))
    } else {
        ("none", format!("no difference was found: with {who} the command takes {share}{memory}"))
    };
    Finding { way, found, of_plain: ratio, sentence }
}

/// Describes a run in a few words, for the progress line.
pub(super) fn brief(took: &Took) -> String {
    format!(
        "{} ms, {} ms of processor time, {}",
        milliseconds(took.spent.wall_ns as f64),
        milliseconds(took.spent.cpu_ns as f64),
        took.max_rss
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_units::Bytes;
    use std::ffi::OsString;

    /// Returns a report in which the plain way takes 1 to 1.4 seconds and the other `ratio` of
    /// that.
    fn report(ratio: f64, rounds: u32, peak: f64, clock: Clock) -> CommandReport {
        let options = Options {
            command: vec![OsString::from("sort"), OsString::from("a file")],
            ways: vec!["ours".into()],
            runs: rounds,
            clock,
            status: 0,
            seed: 1,
            options: Vec::new(),
            log: None,
        };
        let ways = Way::select(&options.ways).unwrap();
        let mut report = CommandReport::begin(&options, &ways, Head::begin("run").unwrap());
        report.note_heap(&ways[1], Heap { resident: 100, huge: 90, hugetlb: 0 });
        for round in 0..rounds {
            // Rounds differ from each other by up to 40 %; within one round, by one percent.
            let pace = 1e9 * (1.0 + 0.1 * f64::from(round % 5));
            let noise = 1.0 + 0.01 * f64::from(round % 3) - 0.01;
            let took = |time: f64, bytes: f64| Took {
                spent: Spent { wall_ns: time as u64, cpu_ns: (2.0 * time) as u64 },
                max_rss: Bytes(bytes as u64),
            };
            report.note(&ways[0], &took(pace, 1e8));
            report.note(&ways[1], &took(pace * ratio * noise, 1e8 * peak));
        }
        report.finish();
        report
    }

    #[test]
    fn what_rounds_have_in_common_cancels_out() {
        let found = report(0.8, 10, 1.0, Clock::Wall);
        let ratios = found.ways[1].of_plain.unwrap();
        assert!((ratios.wall.median - 0.8).abs() < 0.01, "{ratios:?}");
        assert!(ratios.wall.high - ratios.wall.low < 0.03, "the rounds' paces differ by half: {ratios:?}");
        assert_eq!(found.ways[0].of_plain, None);
        assert!((found.ways[1].huge_share.unwrap() - 0.9).abs() < 1e-9);
    }

    #[test]
    fn the_sentence_says_what_the_interval_shows() {
        let finding = |ratio, rounds, peak| report(ratio, rounds, peak, Clock::Wall).finding.unwrap();
        let gain = finding(0.8, 10, 1.0);
        assert_eq!(gain.found, "gain");
        assert!(gain.sentence.starts_with("megapage makes this command 1.25 times as fast (9"), "{gain:?}");
        assert!(gain.sentence.ends_with(')'), "{gain:?}");
        let expensive = finding(0.8, 10, 1.5);
        assert!(expensive.sentence.ends_with(", for 1.50 times its peak memory"), "{expensive:?}");
        let loss = finding(1.2, 10, 1.0);
        assert_eq!(loss.found, "loss");
        assert!(loss.sentence.contains("slower: it takes 1.20 of its time"), "{loss:?}");
        let none = finding(1.0, 10, 1.0);
        assert_eq!(none.found, "none");
        assert!(none.sentence.starts_with("no difference was found: "), "{none:?}");
        let few = finding(0.5, 5, 1.0);
        assert_eq!(few.found, "too-few-rounds");
        assert!(few.sentence.contains("(94 % interval "), "{few:?}");
        let cpu = report(0.8, 10, 1.0, Clock::Cpu).finding.unwrap();
        assert!(cpu.sentence.contains("take 0.80 of its processor time"), "{cpu:?}");
    }
}
