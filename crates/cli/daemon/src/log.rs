//! Log on standard error: summaries of passes, at a bounded rate.

use crate::Pass;
use crate::observability::{LogConfig, LogFormat, LogLevel};
use crate::telemetry::{clean, kind, totals};
use megapage_decide::Reason;
use megapage_snapshot::daemon::Totals;
use megapage_snapshot::{MissedWhy, ProcessId};
use megapage_units::Pid;
use megapage_units::shown::message;
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::Duration;
use tracing::level_filters::LevelFilter;
use tracing_subscriber::fmt::MakeWriter;

/// Most lines about passes and processes, a minute. Lines beyond it are counted, and reported with
/// the next line.
const MOST_LINES: u64 = 120;
/// Most lines about single actions (`debug`), a minute.
const MOST_ACTION_LINES: u64 = 2000;
/// Most processes of one pass that have a line each: those with most memory moved.
const MOST_PROCESSES: usize = 8;
/// Most skipped processes whose last logged reason is kept.
const MOST_SKIPPED: usize = 64;
const MINUTE: Duration = Duration::from_secs(60);

/// Starts the log on standard error, as `config` says. A second call in a process changes nothing:
/// the first log goes on.
pub fn init(config: &LogConfig) {
    // The only possible error is that there is a subscriber already.
    let _ = tracing::subscriber::set_global_default(subscriber(config, std::io::stderr));
}

fn subscriber<W>(config: &LogConfig, to: W) -> Box<dyn tracing::Subscriber + Send + Sync>
where
    W: for<'a> MakeWriter<'a> + Send + Sync + 'static,
{
    let lines = tracing_subscriber::fmt()
        .with_max_level(LevelFilter::from(config.level))
        .with_target(false)
        .with_ansi(false)
        .with_writer(Shown(to));
    match config.format {
        LogFormat::Text => Box::new(lines.finish()),
        LogFormat::Json => Box::new(lines.json().flatten_event(true).finish()),
    }
}

/// Writer of each event as one line in which nothing steers a terminal.
struct Shown<W>(W);

impl<'a, W: MakeWriter<'a>> MakeWriter<'a> for Shown<W> {
    type Writer = ShownLine<W::Writer>;

    fn make_writer(&'a self) -> Self::Writer {
        ShownLine(self.0.make_writer())
    }
}

/// Writer of one event, which comes at once, with the end of its line.
struct ShownLine<W>(W);

impl<W: Write> Write for ShownLine<W> {
    fn write(&mut self, event: &[u8]) -> io::Result<usize> {
        let text = String::from_utf8_lossy(event);
        let line = message(text.strip_suffix('\n').unwrap_or(&text)) + "\n";
        self.0.write_all(line.as_bytes()).map(|()| event.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

impl From<LogLevel> for LevelFilter {
    fn from(level: LogLevel) -> LevelFilter {
        match level {
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
            LogLevel::Trace => LevelFilter::TRACE,
        }
    }
}

/// Number of lines written in a minute, and of those omitted.
#[derive(Debug, Default)]
struct Rate {
    minute: Option<Duration>,
    written: u64,
    left_out: u64,
}

impl Rate {
    /// Counts one more line at the time `now`, if it may be written. Returns the number of lines
    /// omitted since the last one; `None` if this line may not be written.
    fn allow(&mut self, now: Duration, most: u64) -> Option<u64> {
        if self.minute.is_none_or(|start| now.saturating_sub(start) >= MINUTE) {
            (self.minute, self.written) = (Some(now), 0);
        }
        if self.written >= most {
            self.left_out += 1;
            return None;
        }
        self.written += 1;
        Some(std::mem::take(&mut self.left_out))
    }
}

/// Log of passes.
#[derive(Debug, Default)]
pub(crate) struct PassLog {
    lines: Rate,
    actions: Rate,
    was_short: bool,
    /// Reasons logged for processes that are still skipped or not sampled.
    skipped: BTreeMap<Pid, String>,
}

impl PassLog {
    /// Logs a pass. A pass that did something has one line, and one for each process that it acted
    /// on; other passes are logged at level `trace`. Each action is logged at level `debug`.
    pub(crate) fn note(&mut self, pass: &Pass) {
        if std::mem::replace(&mut self.was_short, pass.short) != pass.short
            && let Some(left_out) = self.lines.allow(pass.at, MOST_LINES)
        {
            tracing::info!(pass = pass.number, short = pass.short, left_out, "memory pressure");
        }
        self.skipped(pass);
        if pass.done.is_empty() && pass.backed_off == 0 {
            tracing::trace!(
                pass = pass.number,
                policy = pass.policy,
                watched = pass.watched,
                skipped = pass.skipped,
                left = pass.left,
                observe_ms = milliseconds(pass.times.observe),
                "nothing done"
            );
            return;
        }
        if tracing::enabled!(tracing::Level::DEBUG) {
            self.actions(pass);
        }
        let mut sum = Totals::default();
        let mut by_process: BTreeMap<ProcessId, (Totals, BTreeMap<Reason, u64>)> = BTreeMap::new();
        for done in &pass.done {
            let one = totals(done);
            sum.add(&one);
            let (totals, reasons) = by_process.entry(done.outcome.action.process()).or_default();
            totals.add(&one);
            *reasons.entry(done.outcome.action.reason()).or_default() += 1;
        }
        if let Some(left_out) = self.lines.allow(pass.at, MOST_LINES) {
            tracing::info!(
                pass = pass.number,
                policy = pass.policy,
                dry_run = pass.dry_run,
                actions = sum.actions,
                obtained = sum.obtained,
                promoted_bytes = sum.promoted_bytes,
                freed_bytes = sum.freed_bytes,
                left = pass.left,
                backed_off = pass.backed_off,
                processes = by_process.len(),
                act_ms = milliseconds(pass.times.act),
                short = pass.short,
                left_out,
                "pass"
            );
        }
        let mut processes: Vec<_> = by_process.into_iter().collect();
        processes.sort_by_key(|(id, (totals, _))| {
            (std::cmp::Reverse((totals.promoted_bytes + totals.freed_bytes, totals.actions)), *id)
        });
        for (id, (totals, reasons)) in processes.into_iter().take(MOST_PROCESSES) {
            let name = pass.snapshot.process(id.pid).filter(|process| process.id == id);
            let name = name.map(|process| clean(&process.name)).unwrap_or_default();
            let mostly = reasons.into_iter().max_by_key(|(_, count)| *count).map(|(reason, _)| reason);
            if let Some(left_out) = self.lines.allow(pass.at, MOST_LINES) {
                tracing::info!(
                    pass = pass.number,
                    pid = id.pid.0,
                    name,
                    actions = totals.actions,
                    obtained = totals.obtained,
                    promoted_bytes = totals.promoted_bytes,
                    freed_bytes = totals.freed_bytes,
                    mostly = mostly.map(Reason::name),
                    left_out,
                    "process"
                );
            }
        }
    }

    /// Logs each process that cannot be observed as it should be: once, as long as the reason stays
    /// the same. A process that has ended, or that has executed another program, is not logged.
    fn skipped(&mut self, pass: &Pass) {
        let is_news =
            |why: MissedWhy| !matches!(why, MissedWhy::Gone | MissedWhy::Replaced | MissedWhy::Postponed);
        let missed = pass.snapshot.missed.iter().filter(|missed| is_news(missed.why));
        let now: BTreeMap<Pid, String> =
            missed.take(MOST_SKIPPED).map(|missed| (missed.pid, clean(&missed.what))).collect();
        for (pid, why) in now.iter().filter(|(pid, why)| self.skipped.get(pid) != Some(why)) {
            if let Some(left_out) = self.lines.allow(pass.at, MOST_LINES) {
                tracing::info!(pass = pass.number, pid = pid.0, why, left_out, "skipped");
            }
        }
        self.skipped = now;
    }

    fn actions(&mut self, pass: &Pass) {
        for done in &pass.done {
            let Some(left_out) = self.actions.allow(pass.at, MOST_ACTION_LINES) else { continue };
            let action = &done.outcome.action;
            tracing::debug!(
                pass = pass.number,
                pid = action.process().pid.0,
                action = kind(action),
                region = action.region().map(|start| format!("{start:x}")),
                reason = action.reason().name(),
                obtained = done.outcome.obtained.name(),
                took_us = done.took.as_micros() as u64,
                why = done.why.as_deref().map(clean),
                left_out,
                "action"
            );
        }
    }
}

fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e6).round() / 1e3
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::tests::{pass, promoted};
    use megapage_snapshot::Missed;
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().extend_from_slice(bytes);
            Ok(bytes.len())
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(config: LogConfig, passes: &[Pass]) -> Vec<String> {
        let sink = Sink::default();
        let to = sink.clone();
        tracing::subscriber::with_default(subscriber(&config, move || to.clone()), || {
            let mut log = PassLog::default();
            passes.iter().for_each(|pass| log.note(pass));
        });
        let bytes = sink.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap().lines().map(str::to_string).collect()
    }

    #[test]
    fn a_pass_and_its_processes_have_one_line_each() {
        let mut one = pass(1, &[(7, "re\x1b[31mdis\n"), (8, "idle")]);
        one.done = (0..500).map(|region| promoted(7, region)).collect();
        let text = logged(LogConfig::default(), &[pass(0, &[(7, "x")]), one.clone()]);
        assert_eq!(text.len(), 2, "nothing of the idle pass, no line for a region: {text:?}");
        assert!(text[0].contains("INFO pass pass=1 policy=\"megapage\""), "{text:?}");
        assert!(text[0].contains("actions=500 obtained=500 promoted_bytes=1048576000"), "{text:?}");
        assert!(
            text[1].contains("pid=7 name=\"re?[31mdis?\"") && text[1].contains("mostly=\"gain\""),
            "{text:?}"
        );
        let json = LogConfig { format: LogFormat::Json, level: LogLevel::Debug };
        let text = logged(json, &[one]);
        assert_eq!(text.len(), 502);
        let line: serde_json::Value = serde_json::from_str(&text[500]).unwrap();
        assert_eq!((&line["message"], &line["actions"]), (&"pass".into(), &500.into()));
        let quiet = LogConfig { level: LogLevel::Warn, ..LogConfig::default() };
        assert!(logged(quiet, &[pass(0, &[])]).is_empty());
    }

    #[test]
    fn lines_are_bounded_by_the_minute_and_omitted_ones_are_counted() {
        let busy = |at: u64| {
            let mut one = pass(at, &[(7, "redis")]);
            one.at = Duration::from_millis(at);
            one.done = vec![promoted(7, at)];
            one
        };
        let mut passes: Vec<Pass> = (0..1000).map(busy).collect();
        passes.push(busy(60_001));
        let text = logged(LogConfig::default(), &passes);
        assert_eq!(text.len() as u64, MOST_LINES + 2);
        assert!(text[text.len() - 2].contains(&format!("left_out={}", 2000 - MOST_LINES)), "{text:?}");
    }

    #[test]
    fn the_begin_and_the_end_of_pressure_are_reported_once() {
        let with = |number: u64, short: bool| Pass { short, ..pass(number, &[]) };
        let text =
            logged(LogConfig::default(), &[with(1, false), with(2, true), with(3, true), with(4, false)]);
        assert_eq!(text.len(), 2);
        assert!(text[0].contains("memory pressure pass=2 short=true"), "{text:?}");
    }

    #[test]
    fn a_skipped_process_is_reported_once_for_each_reason() {
        let missing = |number: u64, what: &str, why: MissedWhy| {
            let mut one = pass(number, &[]);
            let missed = Missed { pid: Pid(7), why, what: what.into() };
            Arc::make_mut(&mut one.snapshot).missed = vec![missed];
            one
        };
        let text = logged(
            LogConfig::default(),
            &[
                missing(1, "not sampled: \x1b[0m", MissedWhy::Failed),
                missing(2, "not sampled: \x1b[0m", MissedWhy::Failed),
                missing(3, "denied", MissedWhy::Denied),
                pass(4, &[]),
                missing(5, "denied", MissedWhy::Denied),
                missing(6, "has ended", MissedWhy::Gone),
            ],
        );
        assert_eq!(text.len(), 3, "{text:?}");
        assert!(text[0].contains("skipped pass=1 pid=7 why=\"not sampled: ?[0m\""), "{text:?}");
        assert!(text[1].contains("pass=3") && text[2].contains("pass=5"), "{text:?}");
    }
}
