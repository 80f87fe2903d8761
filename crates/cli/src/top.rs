//! `megapage top`.

mod daemon;
mod terminal;

use crate::output::{is_dumb, paint, print};
use anyhow::{Context, Result};
use daemon::Daemon;
use megapage_kernel::KernelRoot;
use megapage_kernel::spawn::die_of;
use megapage_observe::Options;
use megapage_observe::watch::{Watch, Which};
use megapage_report::json;
use megapage_report::top::{Head, Key, Page, SCHEMA, Top, screen, table};
use megapage_report::value::percent;
use megapage_units::Bytes;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};
use terminal::{Request, Terminal};

/// Watch the machine and its processes: huge pages, hot memory, cost of translation
///
/// The columns: resident memory (hugetlb pages included); its share on pages of 2 MiB or more; the mean coverage of the
/// sampled 2 MiB regions; the share of cycles spent on address translation, with its interval; zeros in huge pages (>
/// while not all are scanned); the change of huge memory since the last refresh; swapped memory; the age of the oldest
/// sample, the share of memory that was sampled, and what that costs the process. A dash means unknown.
///
/// If a megapage daemon runs, top also shows its policy, last pass and last decisions, and in the column DAEMON what it
/// did to each process: memory promoted (+) and freed (-), or how many actions failed.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Only these processes: PIDs, or names as for pgrep
    #[arg(value_name = "PROCESS")]
    processes: Vec<String>,
    /// Seconds between two refreshes [default: 3, with --once 1]
    #[arg(short, long, value_name = "SECONDS", value_parser = crate::sampling::seconds)]
    delay: Option<Duration>,
    /// Show a line for each NUMA node
    #[arg(short, long)]
    numa: bool,
    /// Show one table, with what changed during --delay, and exit
    #[arg(short, long)]
    once: bool,
    /// Sort by pid, name, resident, huge, coverage, cost, bloat, change or swap
    #[arg(short, long, value_name = "COLUMN", default_value = "resident", value_parser = key)]
    sort: Key,
    /// Sort in ascending order
    #[arg(short, long)]
    reverse: bool,
    /// Show processes with at least this much resident memory
    #[arg(long, value_name = "SIZE", default_value = "16m", conflicts_with = "processes")]
    least: Bytes,
    /// Print JSON (schema megapage.top/1), one document for each refresh
    #[arg(long)]
    json: bool,
    /// The socket of the daemon whose decisions to show [default: /run/megapage/daemon.sock, if a daemon answers]
    #[arg(long, value_name = "SOCKET")]
    daemon: Option<PathBuf>,
    #[command(flatten)]
    sampling: crate::sampling::SamplingArgs,
}

fn key(text: &str) -> Result<Key, String> {
    Key::ALL
        .into_iter()
        .find(|key| key.name() == text)
        .ok_or_else(|| format!("sort by one of {}", Key::ALL.map(Key::name).join(", ")))
}

/// 0 when the user leaves, the reader goes away, or all processes that were named have ended.
pub fn main(args: Args) -> Result<ExitCode> {
    let which = match args.processes.is_empty() {
        true => Which::AtLeast(args.least),
        false => Which::Named(args.processes.clone()),
    };
    let mut daemon = Daemon::ask(args.daemon.clone())?;
    // Who is named is looked at, whatever it takes.
    let options = Options { bounded: args.processes.is_empty(), ..args.sampling.options() };
    let mut watch = Watch::start(&KernelRoot::live(), which, options)?;
    let terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal() && !is_dumb();
    if args.once || args.json || !terminal {
        tables(&args, &mut watch, &mut daemon)
    } else {
        live(&args, &mut watch, &mut daemon)
    }
}

impl Args {
    fn delay(&self) -> Duration {
        self.delay.unwrap_or(Duration::from_secs(if self.once { 1 } else { 3 }))
    }

    fn head(&self, watch: &Watch, daemon: &Daemon) -> Head {
        let mut notes = Vec::new();
        notes.extend(watch.unsampled().map(|why| format!("not sampled: {why}")));
        if let Some(budget) = watch.probe_budget() {
            let share = percent(budget);
            notes.push(match self.once {
                true => "COST% is estimated over several refreshes, without --once; megapage advise looks closer".into(),
                false => format!(
                    "COST% comes with the third refresh or so; its estimate slows the busiest processes by {share} % \
                     more at most"
                ),
            });
        }
        if watch.is_uncalibrated() && !self.once {
            notes.push("COST% is not calibrated: accesses were not timed on this machine yet".into());
        }
        if watch.left_out() > 0 {
            notes.push(format!("{} smaller processes are left out", watch.left_out()));
        }
        notes.extend(daemon.note());
        Head {
            key: self.sort,
            reverse: self.reverse,
            every: (!self.once).then(|| watch.pace(self.delay())),
            numa: self.numa,
            notes,
        }
    }
}

/// One table after the other, for a pipe or a file; with `--once` the one that knows what has changed.
fn tables(args: &Args, watch: &mut Watch, daemon: &mut Daemon) -> Result<ExitCode> {
    let mut skip = args.once;
    loop {
        let mut top = Top::new(watch.before(), watch.now(), watch.outlines()).with_daemon(daemon.seen());
        top.sort(args.sort, args.reverse);
        if !skip {
            let text = match args.json {
                true => json(SCHEMA, &top) + "\n",
                false => table(&top, &args.head(watch, daemon)) + if args.once { "" } else { "\n" },
            };
            if !print(&text)? || args.once || ended(args, watch) {
                return Ok(ExitCode::SUCCESS);
            }
        }
        skip = false;
        let end = Instant::now() + watch.pace(args.delay());
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            watch.idle(left, &mut |time| {
                std::thread::sleep(time);
                true
            });
        }
        watch.refresh()?;
        daemon.refresh();
    }
}

/// Whether none of the processes that were named is left.
fn ended(args: &Args, watch: &Watch) -> bool {
    !args.processes.is_empty() && watch.outlines().is_empty()
}

/// What the user has changed by keys.
struct View {
    key: Key,
    reverse: bool,
    numa: bool,
    first: usize,
}

fn live(args: &Args, watch: &mut Watch, daemon: &mut Daemon) -> Result<ExitCode> {
    let mut view = View { key: args.sort, reverse: args.reverse, numa: args.numa, first: 0 };
    let mut terminal = Terminal::take().context("the terminal cannot be taken over; try --once")?;
    let mut refreshed = Instant::now();
    while !ended(args, watch) {
        let (columns, lines) = terminal.size();
        let mut top = Top::new(watch.before(), watch.now(), watch.outlines()).with_daemon(daemon.seen());
        top.sort(view.key, view.reverse);
        let count = top.processes.len();
        view.first = view.first.min(count.saturating_sub(1));
        let head = Head { key: view.key, reverse: view.reverse, numa: view.numa, ..args.head(watch, daemon) };
        let page = Page { first: view.first, lines, columns };
        terminal.draw(&screen(&top, &head, page), paint())?;

        let left = watch.pace(args.delay()).saturating_sub(refreshed.elapsed());
        let mut request = Ok(Request::Nothing);
        watch.idle(left, &mut |time| {
            // A request that has come is not to be lost.
            if matches!(request, Ok(Request::Nothing)) {
                request = terminal.wait(time);
            }
            matches!(request, Ok(Request::Nothing))
        });
        match request? {
            Request::Quit => return Ok(ExitCode::SUCCESS),
            Request::Die(number) => {
                drop(terminal);
                die_of(number);
            }
            Request::Column(steps) => view.key = view.key.step(steps),
            Request::Reverse => view.reverse = !view.reverse,
            Request::Nodes => view.numa = !view.numa,
            Request::Scroll(by) => view.first = view.first.saturating_add_signed(by),
            Request::Turn(screens) => {
                view.first = view.first.saturating_add_signed(screens * (lines / 2).max(1) as isize);
            }
            Request::Redraw | Request::Stop => {}
            Request::Nothing if refreshed.elapsed() < watch.pace(args.delay()) => {}
            Request::Nothing | Request::Refresh => {
                watch.refresh()?;
                daemon.refresh();
                refreshed = Instant::now();
            }
        }
    }
    drop(terminal);
    crate::output::say("all processes that were named have ended");
    Ok(ExitCode::SUCCESS)
}
