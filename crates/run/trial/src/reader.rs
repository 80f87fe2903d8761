//! Readers of metrics: each gives two growing sums, see [`Reading`].

mod calls;
mod command;
mod http;
mod requests;

use crate::metric::{Kind, Metric, MetricOptions, Per};
use crate::processor::Processor;
use command::Command;
use megapage_decide::judge::{Better, Reading};
use megapage_kernel::KernelRoot;
use megapage_kernel::cgroup::{GroupAccounts, Resource, machine_stalled};
use megapage_kernel::function_calls::CallCounter;
use megapage_units::Pid;
use requests::Counted;
use std::time::{Duration, Instant};

/// The service that is read.
pub(crate) struct Service<'a> {
    pub root: &'a KernelRoot,
    pub pids: &'a [Pid],
    /// Its control group, if it has a separate one.
    pub group: Option<&'a GroupAccounts>,
}

/// A metric that is read.
pub(crate) struct Reader {
    source: Source,
    base: Base,
    /// The metric in words.
    pub words: String,
    /// The better values: greater or smaller ones.
    pub better: Better,
}

enum Source {
    Counted(Counted),
    /// Calls of the service's functions.
    Calls(CallCounter),
    /// Times of their calls: the sum in microseconds, and the number of calls.
    Latency(CallCounter),
    /// A count from outside. `before` is the sum of the values that it had before each restart.
    Counter {
        value: Value,
        last: f64,
        before: f64,
    },
    /// Samples from outside: their sum and number.
    Gauge {
        value: Value,
        sum: f64,
        count: f64,
    },
    /// The time in which no task waits.
    Free {
        root: KernelRoot,
        group: Option<GroupAccounts>,
        resource: Resource,
        start: Instant,
    },
}

/// A number from outside.
enum Value {
    Command(Command),
    Http(http::Source),
}

enum Base {
    Cpu(Processor),
    Wall(Instant),
    /// None: the source counts its own base.
    Own,
}

impl Base {
    fn seconds(&mut self) -> f64 {
        match self {
            Base::Cpu(processor) => processor.now().as_secs_f64(),
            Base::Wall(start) => start.elapsed().as_secs_f64(),
            Base::Own => 0.0,
        }
    }

    fn in_words(&self) -> &'static str {
        match self {
            Base::Cpu(processor) => processor.in_words(),
            Base::Wall(_) => "second",
            Base::Own => "sample",
        }
    }
}

impl Value {
    fn read(&mut self) -> Result<f64, String> {
        let value = match self {
            Value::Command(command) => command.read(),
            Value::Http(source) => source.read(),
        }?;
        if value.is_finite() { Ok(value) } else { Err(format!("the value is {value}")) }
    }
}

impl Reader {
    /// Returns a reader of `metric`. Reads it once, so that an unreadable metric fails at once.
    /// `patience` bounds the time of one reading. With [`Metric::Requests`], `wait` lets the
    /// service work for a moment, to see which of the kernel's counts grows.
    pub fn open(
        metric: &Metric,
        options: &MetricOptions,
        service: &Service<'_>,
        patience: Duration,
        wait: &mut dyn FnMut(Duration),
    ) -> Result<Reader, String> {
        let outside = |value: Value| -> Result<Reader, String> {
            let (source, base) = match options.kind {
                Kind::Gauge => (Source::Gauge { value, sum: 0.0, count: 0.0 }, Base::Own),
                Kind::Counter => {
                    let base = match options.per {
                        Per::Cpu => Base::Cpu(Processor::of(service.root, service.group, service.pids)),
                        Per::Second => Base::Wall(Instant::now()),
                    };
                    (Source::Counter { value, last: 0.0, before: 0.0 }, base)
                }
            };
            let per = if options.kind == Kind::Counter {
                format!(" per {}", base.in_words())
            } else {
                String::new()
            };
            Ok(Reader { source, base, words: format!("{metric}{per}"), better: options.better })
        };
        let mut reader = match metric {
            Metric::Requests | Metric::Calls | Metric::Segments => {
                let (counted, base) = Counted::open(metric, service, wait)?;
                let words = format!("{} per {}", counted.in_words(), base.in_words());
                Reader {
                    source: Source::Counted(counted),
                    base: Base::Cpu(base),
                    words,
                    better: Better::More,
                }
            }
            Metric::Function(point) | Metric::Usdt(point) => {
                let base = Base::Cpu(Processor::of(service.root, None, service.pids));
                let what = if point.provider.is_some() { "passes of" } else { "calls of" };
                let words = format!("{what} {point} per {}", base.in_words());
                let source = Source::Calls(calls::open(service, point, false)?);
                Reader { source, base, words, better: Better::More }
            }
            Metric::Latency(point) => Reader {
                source: Source::Latency(calls::open(service, point, true)?),
                base: Base::Own,
                words: format!("microseconds that a call of {point} takes"),
                better: Better::Less,
            },
            Metric::Prometheus { url, query } => {
                outside(Value::Http(http::Source::query(url, query, patience)))?
            }
            Metric::Scrape { url, name } => outside(Value::Http(http::Source::scrape(url, name, patience)?))?,
            Metric::Command(shell) => outside(Value::Command(Command::new(shell, patience)))?,
            Metric::Psi(resource) => {
                let group = service.group.cloned();
                let whose = if group.is_some() { "its control group" } else { "the machine" };
                let source = Source::Free {
                    root: service.root.clone(),
                    group,
                    resource: *resource,
                    start: Instant::now(),
                };
                let words =
                    format!("share of time in which no task of {whose} waits for {}", resource.name());
                Reader { source, base: Base::Own, words, better: Better::More }
            }
        };
        reader.read().map_err(|why| format!("{metric}: {why}"))?;
        Ok(reader)
    }

    /// Returns the metric's sums so far.
    pub fn read(&mut self) -> Result<Reading, String> {
        let base = self.base.seconds();
        match &mut self.source {
            Source::Counted(counted) => Ok(Reading { amount: counted.read(), base }),
            Source::Calls(counter) => {
                let calls = counter.read().map_err(|error| error.to_string())?;
                Ok(Reading { amount: calls.calls as f64, base })
            }
            Source::Latency(counter) => {
                let calls = counter.read().map_err(|error| error.to_string())?;
                Ok(Reading { amount: calls.time.as_secs_f64() * 1e6, base: calls.returns as f64 })
            }
            Source::Counter { value, last, before } => {
                let now = value.read()?;
                if now < *last {
                    *before += *last;
                }
                *last = now;
                Ok(Reading { amount: *before + now, base })
            }
            Source::Gauge { value, sum, count } => {
                *sum += value.read()?;
                *count += 1.0;
                Ok(Reading { amount: *sum, base: *count })
            }
            Source::Free { root, group, resource, start } => {
                let stalled = match group {
                    Some(group) => group.stalled(root, *resource),
                    None => machine_stalled(root, *resource),
                };
                let stalled = stalled.map_err(|error| error.to_string())?.as_secs_f64();
                let elapsed = start.elapsed().as_secs_f64();
                Ok(Reading { amount: elapsed - stalled, base: elapsed })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn own() -> [Pid; 1] {
        [Pid(std::process::id().cast_signed())]
    }

    fn open(metric: &str, kind: Kind) -> Result<Reader, String> {
        let options = MetricOptions { kind, per: Per::Second, better: Better::Less };
        let (root, pids) = (KernelRoot::live(), own());
        let service = Service { root: &root, pids: &pids, group: None };
        Reader::open(&metric.parse().unwrap(), &options, &service, Duration::from_secs(5), &mut |_| {})
    }

    #[test]
    fn samples_are_averaged_and_counts_are_not_lost_when_they_begin_anew() {
        let directory = std::env::temp_dir().join(format!("megapage-reader-{}", std::process::id()));
        let metric = format!("command:cat {}", directory.display());
        let put = |value: &str| std::fs::write(&directory, value).unwrap();
        put("4\n");
        let mut gauge = open(&metric, Kind::Gauge).unwrap();
        assert_eq!(gauge.better, Better::Less);
        let first = gauge.read().unwrap();
        put("2\n");
        gauge.read().unwrap();
        put("6\n");
        assert_eq!(gauge.read().unwrap().since(&first), Some(4.0), "the mean of 2 and 6");
        put("100\n");
        let mut counter = open(&metric, Kind::Counter).unwrap();
        let first = counter.read().unwrap();
        put("130\n");
        counter.read().unwrap();
        put("5\n");
        let last = counter.read().unwrap();
        assert_eq!(last.amount - first.amount, 35.0, "the service was restarted");
        put("nothing\n");
        assert!(counter.read().unwrap_err().contains("no number"));
        std::fs::remove_file(&directory).unwrap();
        assert!(open(&metric, Kind::Gauge).err().unwrap().contains("status 1"));
    }

    /// A child that is killed when the test ends.
    struct Killed(std::process::Child);

    impl Drop for Killed {
        fn drop(&mut self) {
            let _ = self.0.kill();
            let _ = self.0.wait();
        }
    }

    /// Opens the metric on a new child process; `None` if this machine cannot.
    fn on_a_child(command: &[&str], metric: &str) -> Option<(Killed, Result<Reader, String>)> {
        if !megapage_testing::require_root() {
            return None;
        }
        let Ok(child) = std::process::Command::new(command[0]).args(&command[1..]).spawn() else {
            megapage_testing::skip(&format!("there is no {}", command[0]));
            return None;
        };
        let child = Killed(child);
        let (root, pids) = (KernelRoot::live(), [Pid(child.0.id() as i32)]);
        let program = root.path(format!("proc/{}/exe", pids[0]));
        megapage_testing::wait_for("execve", || {
            program.read_link().is_ok_and(|path| path.ends_with(command[0]))
        });
        let service = Service { root: &root, pids: &pids, group: None };
        let options = MetricOptions { kind: Kind::Gauge, per: Per::Second, better: Better::More };
        let metric = metric.parse().unwrap();
        let opened = Reader::open(&metric, &options, &service, Duration::from_secs(5), &mut |_| {});
        if let Err(why) = &opened
            && why.starts_with("BPF:")
        {
            megapage_testing::skip(why);
            return None;
        }
        Some((child, opened))
    }

    /// Returns the growth of a reading, once the amount has grown by more than 100 and the base
    /// too.
    fn grown(mut reader: Reader) -> Reading {
        let first = reader.read().unwrap();
        let mut last = first;
        megapage_testing::wait_for("calls", || {
            last = reader.read().unwrap();
            last.amount > first.amount + 100.0 && last.base > first.base
        });
        Reading { amount: last.amount - first.amount, base: last.base - first.base }
    }

    /// Debian's perl exports its functions.
    const PERL: [&str; 3] =
        ["perl", "-e", "for (;;) { $x += rand() for 1 .. 100; select(undef, undef, undef, 0.001) }"];

    #[test]
    fn a_function_is_counted_and_timed() {
        let Some((_child, reader)) = on_a_child(&PERL, "function:Perl_pp_rand") else { return };
        let reader = reader.unwrap();
        assert_eq!(
            (reader.words.as_str(), reader.better),
            ("calls of Perl_pp_rand per CPU second", Better::More)
        );
        let counted = grown(reader);
        assert!(counted.amount >= 100.0 && counted.base > 0.0, "{counted:?}");
        let (_child, reader) = on_a_child(&PERL, "latency:Perl_pp_sselect").unwrap();
        let reader = reader.unwrap();
        assert_eq!(reader.better, Better::Less);
        let timed = grown(reader);
        let microseconds = timed.amount / timed.base;
        assert!(microseconds >= 1000.0, "it sleeps for a millisecond: {microseconds}");
        let (_child, none) = on_a_child(&PERL, "function:no_such_function").unwrap();
        assert!(none.err().unwrap().contains("it has no function no_such_function"));
    }

    #[test]
    fn what_a_program_announces_is_counted_once_it_is_looked_at() {
        let python =
            ["/usr/bin/python3.11", "-c", "import gc, time\nwhile True: gc.collect(0); time.sleep(0.0001)"];
        let Some((_child, reader)) = on_a_child(&python, "usdt:python:gc__done") else { return };
        let reader = match reader {
            Err(why) if why.contains("was built without") => return megapage_testing::skip(&why),
            reader => reader.unwrap(),
        };
        let counted = grown(reader);
        assert!(counted.amount > 100.0 && counted.base > 0.0, "{counted:?}");
        let (_child, none) = on_a_child(&python, "usdt:python:no_such_place").unwrap();
        assert!(none.err().unwrap().contains("announces no python:no_such_place"));
    }

    #[test]
    fn time_without_waiting_is_a_share() {
        let Ok(mut reader) = open("psi:memory", Kind::Gauge) else {
            return megapage_testing::skip("the kernel measures no pressure");
        };
        let first = reader.read().unwrap();
        std::thread::sleep(Duration::from_millis(5));
        let share = reader.read().unwrap().since(&first);
        assert!(share.is_some_and(|share| share <= 1.0 + 1e-9), "{share:?}");
    }
}
