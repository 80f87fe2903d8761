//! `megapage trial`.

use crate::flags::name;
use crate::output::{answer, print, progress, say};
use anyhow::{Context, Result, anyhow, bail};
use megapage_decide::judge::{Better, Progress};
use megapage_kernel::KernelRoot;
use megapage_launch::request::ReturnAfter;
use megapage_launch::verdict::{self, Stored, Verdict};
use megapage_observe::select_processes;
use megapage_report::trial::{human, verdicts};
use megapage_report::{json, lines};
use megapage_systemd::{UnitName, processes};
use megapage_trial::{Kind, Metric, MetricOptions, Options, Per, SCHEMA, Target, Trial};
use megapage_units::shown::shell_path;
use serde::Serialize;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Measure if huge pages pay for a running service: switch them on and off in random order, and
/// compare the service's own metric.
///
/// If the gain is at least --least-gain, the memory stays huge; otherwise megapage undoes the
/// change. The next start of the same build follows the result. Needs Linux 6.1, and root or
/// CAP_SYS_NICE and CAP_SYS_PTRACE. Exit status: 0 decided; 1 undecided, or ended early; 2 bad
/// input, or not possible.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A systemd service, or processes by PID or name
    #[arg(value_name = "SERVICE|PROCESS", required_unless_present_any = ["list", "forget"])]
    targets: Vec<String>,
    /// The metric to judge by: requests, calls, segments, psi:cpu|memory|io, function:NAME,
    /// latency:NAME, usdt:PROVIDER:NAME (of a library: 'function:FILE NAME'),
    /// 'prometheus:URL QUERY', 'scrape:URL NAME', 'command:SHELL'
    #[arg(long, value_name = "METRIC", default_value = "requests")]
    metric: Metric,
    /// For the metrics prometheus, scrape and command: treat values as a growing count (counter) or
    /// as samples (gauge) [default: counter for scrape, else gauge]
    #[arg(long, value_name = "counter|gauge")]
    kind: Option<Kind>,
    /// Divide a count by the service's processor time (cpu) or by wall-clock time (second)
    /// [default: cpu]
    #[arg(long, value_name = "cpu|second")]
    per: Option<Per>,
    /// For the metrics prometheus, scrape and command: smaller values are better
    #[arg(long)]
    lower_is_better: bool,
    /// Smallest gain for which the memory stays huge
    #[arg(long, value_name = "PERCENT", default_value = "1%", value_parser = least_gain)]
    least_gain: f64,
    /// Stop as undecided after this time: 1s to 24h
    #[arg(long, value_name = "TIME", default_value = "30m", value_parser = time)]
    most: Duration,
    /// Shortest time between two switches of page size: 200ms to 1h; longer if switching is
    /// expensive
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = time)]
    period: Duration,
    /// Time to wait after each change of page size before measuring [default: a tenth of the
    /// period, 200ms to 2s]
    #[arg(long, value_name = "TIME", value_parser = time)]
    settle: Option<Duration>,
    /// Return to base pages at the end, whatever the result
    #[arg(long)]
    revert_always: bool,
    /// Random seed of the order
    #[arg(long, value_name = "NUMBER")]
    seed: Option<u64>,
    /// Change nothing; print what would be done
    #[arg(long)]
    dry_run: bool,
    /// List the results of earlier trials
    #[arg(long, conflicts_with_all = ["targets", "forget", "dry_run"])]
    list: bool,
    /// Delete the results of trials of this service or program
    #[arg(long, value_name = "SERVICE", value_parser = name, conflicts_with = "targets")]
    forget: Option<String>,
    /// Print JSON (schema megapage.trial/1, megapage.trial-list/1)
    #[arg(long)]
    json: bool,
}

pub fn main(args: Args) -> Result<ExitCode> {
    if args.list || args.forget.is_some() {
        return stored(&args);
    }
    let root = KernelRoot::live();
    let options = options(&args)?;
    let target = target(&root, &args.targets)?;
    let trial = Trial::prepare(&root, &target, options)?;
    if args.dry_run {
        print(&lines(trial.dry_run()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let report = trial.run(&mut |so_far: &Progress| {
        progress(format!("{} blocks: {}", so_far.blocks, so_far.gain.in_words()));
    })?;
    answer(args.json, SCHEMA, &report, || human(&report))?;
    Ok(ExitCode::from(u8::from(!report.outcome.decision.is_known())))
}

fn options(args: &Args) -> Result<Options> {
    let is_asked = args.kind.is_some() || args.per.is_some() || args.lower_is_better;
    if is_asked && !args.metric.has_options() {
        bail!(
            "--kind, --per and --lower-is-better go with prometheus, scrape and command; {} is known",
            args.metric
        );
    }
    let is_page = matches!(args.metric, Metric::Scrape { .. });
    let kind = args.kind.unwrap_or(if is_page { Kind::Counter } else { Kind::Gauge });
    if args.per.is_some() && kind == Kind::Gauge {
        bail!("--per goes with a count: --kind counter");
    }
    let between =
        |name: &str, time: Duration, least: Duration, most: Duration| match (least..=most).contains(&time) {
            true => Ok(()),
            false => Err(anyhow!("--{name} {time:?}: give {least:?} to {most:?}")),
        };
    let second = Duration::from_secs(1);
    between("most", args.most, second, second * 86_400)?;
    between("period", args.period, second / 5, second * 3600)?;
    if let Some(settle) = args.settle {
        between("settle", settle, Duration::ZERO, second * 3600)?;
    }
    let better = if args.lower_is_better { Better::Less } else { Better::More };
    let clock = || SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |it| it.as_nanos() as u64);
    Ok(Options {
        metric: args.metric.clone(),
        metric_options: MetricOptions { kind, per: args.per.unwrap_or(Per::Cpu), better },
        least_gain: args.least_gain,
        most: args.most,
        period: args.period,
        settle: args.settle,
        keep: !args.revert_always,
        seed: args.seed.unwrap_or_else(clock),
    })
}

/// Returns a running unit, or processes.
fn target(root: &KernelRoot, names: &[String]) -> Result<Target> {
    if let [name] = names
        && name.parse::<u64>().is_err()
        && let Ok(unit) = UnitName::parse(name)
    {
        match processes(root, &unit) {
            Ok(pids) if !pids.is_empty() => return Ok(Target { unit: Some(unit.to_string()), pids }),
            // No process has such a name.
            Ok(_) | Err(_) if name.ends_with(".service") => bail!("{name}: the service does not run"),
            _ => {}
        }
    }
    Ok(Target { unit: None, pids: select_processes(root, names)? })
}

#[derive(Serialize)]
struct Listed<'a> {
    directory: String,
    verdicts: Vec<Entry<'a>>,
}

#[derive(Serialize)]
struct Entry<'a> {
    file: String,
    verdict: Option<&'a Verdict>,
    /// True if the program's file is still the build that was on trial.
    current: bool,
    error: Option<&'a str>,
}

/// Runs `--list` and `--forget`.
fn stored(args: &Args) -> Result<ExitCode> {
    let store = verdict::store().map_err(|why| anyhow!("no directory of trials: {why}"))?;
    let directory = store.path().display().to_string();
    let all = verdict::all(&store).with_context(|| directory.clone())?;
    if let Some(name) = &args.forget {
        let is_meant =
            |it: &&Stored<Verdict>| it.content.as_ref().is_ok_and(|verdict| verdict.is_meant_by(name));
        let meant: Vec<&Stored<Verdict>> = all.iter().filter(is_meant).collect();
        if meant.is_empty() {
            bail!("no trial of {name} is known: megapage trial --list shows all");
        }
        for one in meant {
            if args.dry_run {
                print(&format!("rm -- {}\n", shell_path(&one.file)))?;
            } else {
                store.remove(&one.key).with_context(|| one.file.display().to_string())?;
            }
        }
        return Ok(ExitCode::SUCCESS);
    }
    if args.json {
        let verdicts = all.iter().map(|it| Entry {
            file: it.file.display().to_string(),
            verdict: it.content.as_ref().ok(),
            current: it.content.as_ref().is_ok_and(Verdict::is_current),
            error: it.content.as_ref().err().map(String::as_str),
        });
        print(&(json("megapage.trial-list/1", &Listed { directory, verdicts: verdicts.collect() }) + "\n"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let known = all.iter().filter_map(|it| it.content.as_ref().ok());
    let known: Vec<(&Verdict, bool)> = known.map(|it| (it, it.is_current())).collect();
    for broken in all.iter().filter(|it| it.content.is_err()) {
        let why = broken.content.as_ref().err().map_or("", String::as_str);
        say(format!("{}: {why}", broken.file.display()));
    }
    print(&if known.is_empty() { format!("No trials in {directory}.\n") } else { verdicts(&known) })?;
    Ok(ExitCode::SUCCESS)
}

/// Parses a share in percent, with or without its sign.
fn least_gain(text: &str) -> Result<f64, String> {
    let number = text.trim_end_matches('%').trim().parse::<f64>().ok();
    let fits = number.filter(|number| (0.1..=100.0).contains(number));
    fits.map(|number| number / 100.0).ok_or_else(|| "give 0.1 to 100 percent".into())
}

/// Parses `500ms`, `10s`, `30m` (or `30min`) or `2h`.
fn time(text: &str) -> Result<Duration, String> {
    let is_minutes = text.ends_with('m');
    let text = if is_minutes { format!("{text}in") } else { text.to_string() };
    match text.parse::<ReturnAfter>() {
        Ok(ReturnAfter::After(time)) => Ok(time),
        _ => Err("write it like 500ms, 10s, 30m or 2h".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_and_shares_are_read() {
        assert_eq!(time("30m"), Ok(Duration::from_secs(1800)));
        assert_eq!(time("30min"), Ok(Duration::from_secs(1800)));
        assert_eq!(time("500ms"), Ok(Duration::from_millis(500)));
        assert!(time("never").is_err() && time("5").is_err() && time("m").is_err());
        assert_eq!(least_gain("1%"), Ok(0.01));
        assert_eq!(least_gain("2.5"), Ok(0.025));
        assert!(least_gain("0").is_err() && least_gain("101%").is_err() && least_gain("x").is_err());
    }
}
