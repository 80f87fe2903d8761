//! `megapage top`.

mod daemon;

use crate::output::{is_dumb, paint, print};
use crate::terminal::{Request, Terminal};
use anyhow::{Context, Result};
use daemon::Daemon;
use megapage_kernel::KernelRoot;
use megapage_kernel::spawn::die_of;
use megapage_observe::Options;
use megapage_observe::watch::{Watch, Which};
use megapage_report::line::Line;
use megapage_report::top::{Head, Key, Page, Prompt, SCHEMA, Top, help, screen, table};
use megapage_report::value::percent;
use megapage_report::{columns, json};
use megapage_units::Bytes;
use regex_lite::Regex;
use std::io::IsTerminal;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Watch the machine and its processes: huge pages, hot memory, cost of address translation
///
/// The columns USER, UNIT and POD show the user, the systemd unit (or control group) and the
/// Kubernetes pod. RESIDENT includes hugetlb pages. HUGE% is the share of resident memory on pages
/// of 2 MiB or more. COVERAGE% is the mean accessed share of the sampled 2 MiB regions. COST% is
/// the share of cycles spent on address translation, with its interval. BLOAT is zeros in huge
/// pages (> while not all are scanned). HUGE+- is the change of huge memory since the last refresh;
/// SWAP is swapped memory. SAMPLED is the age of the oldest sample, the share of memory sampled,
/// and the sampling cost to the process. A dash means unknown. A narrow terminal shows fewer
/// columns, but always the sort column. On a terminal, ? shows the keys.
///
/// If a megapage daemon runs, top also shows the daemon's policy, last round and last decisions.
/// Column DAEMON shows the memory that the daemon made huge (+) and freed (-) in each process, or
/// how many actions failed.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Only these processes: PIDs, or names matched as by pgrep
    #[arg(value_name = "PROCESS")]
    processes: Vec<String>,
    /// Seconds between two refreshes [default: 3, with --once 1]
    #[arg(short, long, value_name = "SECONDS", value_parser = crate::sampling::seconds(0.1, 86_400.0))]
    delay: Option<Duration>,
    /// Show one table, with what changed during --delay, and exit
    #[arg(short, long)]
    once: bool,
    /// Only processes whose name, user, unit, control group, pod or number matches this regular
    /// expression
    #[arg(short, long, value_name = "REGEX", value_parser = filter)]
    filter: Option<Filter>,
    /// Sort by pid, user, name, unit, pod, resident, huge, coverage, cost, bloat, change or swap
    #[arg(short, long, value_name = "COLUMN", default_value = "resident", value_parser = key)]
    sort: Key,
    /// Show only processes with at least this much resident memory
    #[arg(long, value_name = "SIZE", default_value = "16m", value_parser = crate::sampling::size, conflicts_with = "processes")]
    least: Bytes,
    /// Print JSON (schema megapage.top/1), one document for each refresh
    #[arg(long)]
    json: bool,
    /// Socket of the daemon whose decisions top shows [default: /run/megapage/daemon.sock, if a
    /// daemon answers there]
    #[arg(long, value_name = "SOCKET")]
    daemon: Option<PathBuf>,
    #[command(flatten)]
    sampling: crate::sampling::SamplingArgs,
}

fn key(text: &str) -> Result<Key, String> {
    Key::parse(text.as_bytes())
        .ok_or_else(|| format!("sort by one of {}", Key::ALL.map(Key::name).join(", ")))
}

/// A filter: its text, and its expression. The empty filter matches all.
#[derive(Clone, Debug, Default)]
struct Filter {
    text: String,
    expression: Option<Regex>,
}

fn filter(text: &str) -> Result<Filter, String> {
    let expression =
        (!text.is_empty()).then(|| Regex::new(text)).transpose().map_err(|error| error.to_string())?;
    Ok(Filter { text: text.into(), expression })
}

/// Runs the command. Returns 0 if the user leaves, the reader goes away, or all named processes
/// have ended.
pub fn main(args: Args) -> Result<ExitCode> {
    let which = match args.processes.is_empty() {
        true => Which::AtLeast(args.least),
        false => Which::Named(args.processes.clone()),
    };
    let mut daemon = Daemon::ask(args.daemon.clone())?;
    // Processes that the user named are observed at any cost.
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
        if let Some(why) = watch.why_uncalibrated().filter(|_| !self.once) {
            notes.push(format!("COST% is not calibrated: {why}"));
        }
        if watch.left_out() > 0 {
            notes.push(format!("{} smaller processes are left out", watch.left_out()));
        }
        notes.extend(daemon.note());
        Head {
            key: self.sort,
            reverse: false,
            every: (!self.once).then(|| watch.pace(self.delay())),
            filter: self.filter.as_ref().map(|filter| filter.text.clone()).unwrap_or_default(),
            notes,
        }
    }
}

/// Prints one table after the other, for a pipe or a file. With `--once` prints only the second
/// one, which knows the changes.
fn tables(args: &Args, watch: &mut Watch, daemon: &mut Daemon) -> Result<ExitCode> {
    let mut skip = args.once;
    loop {
        let top = sorted(watch, daemon, args.filter.as_ref(), (args.sort, false));
        if !skip {
            let text = match args.json {
                true => json(SCHEMA, &top) + "\n",
                false => {
                    table(&top, &args.head(watch, daemon), columns()) + if args.once { "" } else { "\n" }
                }
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

fn sorted<'a>(watch: &'a Watch, daemon: &'a Daemon, filter: Option<&Filter>, order: (Key, bool)) -> Top<'a> {
    let mut top = Top::new(watch.before(), watch.now(), watch.outlines()).with_daemon(daemon.seen());
    if let Some(expression) = filter.and_then(|filter| filter.expression.as_ref()) {
        top.filter(expression);
    }
    top.sort(order.0, order.1);
    top
}

/// Returns true if all named processes have ended.
fn ended(args: &Args, watch: &Watch) -> bool {
    !args.processes.is_empty() && watch.outlines().is_empty()
}

/// The state of the view, which keys change.
struct View {
    key: Key,
    reverse: bool,
    first: usize,
    filter: Filter,
    /// The filter that is being typed, and the error in it.
    typed: Option<(String, Option<String>)>,
    help: bool,
}

impl View {
    fn of(args: &Args) -> View {
        View {
            key: args.sort,
            reverse: false,
            first: 0,
            filter: args.filter.clone().unwrap_or_default(),
            typed: None,
            help: false,
        }
    }

    /// Applies a change to the typed filter. While the text is no valid expression, the last valid
    /// one stays in force.
    fn type_filter(&mut self, change: impl FnOnce(&mut String)) {
        let (mut text, _) = self.typed.take().unwrap_or_default();
        change(&mut text);
        let wrong = match filter(&text) {
            Ok(filter) => {
                self.filter = filter;
                None
            }
            Err(why) => Some(why),
        };
        self.typed = Some((text, wrong));
    }

    fn screen(
        &mut self,
        args: &Args,
        watch: &Watch,
        daemon: &Daemon,
        (columns, lines): (usize, usize),
    ) -> Vec<Line> {
        if self.help {
            return help(lines, columns);
        }
        let top = sorted(watch, daemon, Some(&self.filter), (self.key, self.reverse));
        self.first = self.first.min(top.processes.len().saturating_sub(1));
        let filter = self.filter.text.clone();
        let head = Head { key: self.key, reverse: self.reverse, filter, ..args.head(watch, daemon) };
        let prompt = match &self.typed {
            Some((text, wrong)) => Prompt::Filter(text, wrong.as_deref()),
            None => Prompt::Keys,
        };
        screen(&top, &head, Page { first: self.first, lines, columns }, prompt)
    }

    /// Applies a key that changes only the view.
    fn change(&mut self, request: Request, lines: usize) {
        match request {
            Request::Column(steps) => self.key = self.key.step(steps),
            Request::Reverse => self.reverse = !self.reverse,
            Request::Scroll(by) => self.first = self.first.saturating_add_signed(by),
            Request::Turn(screens) => {
                self.first = self.first.saturating_add_signed(screens * (lines / 2).max(1) as isize);
            }
            Request::Help => self.help = true,
            Request::Filter => self.typed = Some((self.filter.text.clone(), None)),
            Request::Type(letter) => self.type_filter(|text| text.push(letter)),
            Request::Erase => {
                self.type_filter(|text| text.truncate(text.char_indices().last().map_or(0, |(at, _)| at)))
            }
            Request::Keep => self.typed = None,
            Request::Drop => (self.filter, self.typed) = (Filter::default(), None),
            Request::Nothing
            | Request::Quit
            | Request::Die(_)
            | Request::Stop
            | Request::Refresh
            | Request::Redraw => {}
        }
    }
}

fn live(args: &Args, watch: &mut Watch, daemon: &mut Daemon) -> Result<ExitCode> {
    let mut view = View::of(args);
    let mut terminal = Terminal::take().context("the terminal cannot be taken over; try --once")?;
    let mut refreshed = Instant::now();
    while !ended(args, watch) {
        let size = terminal.size();
        terminal.draw(&view.screen(args, watch, daemon, size), paint())?;

        let left = watch.pace(args.delay()).saturating_sub(refreshed.elapsed());
        let mut request = Ok(Request::Nothing);
        watch.idle(left, &mut |time| {
            // Keeps a request that has arrived.
            if matches!(request, Ok(Request::Nothing)) {
                request = terminal.wait(time);
            }
            matches!(request, Ok(Request::Nothing))
        });
        let request = request?;
        // Any key leaves the help; `/` also begins a filter.
        if view.help && request.is_key() {
            view.help = false;
            if request != Request::Filter {
                continue;
            }
        }
        match request {
            Request::Quit => return Ok(ExitCode::SUCCESS),
            Request::Die(number) => {
                drop(terminal);
                die_of(number);
            }
            Request::Nothing if refreshed.elapsed() < watch.pace(args.delay()) => {}
            Request::Nothing | Request::Refresh => {
                watch.refresh()?;
                daemon.refresh();
                refreshed = Instant::now();
            }
            of_the_view => view.change(of_the_view, size.1),
        }
    }
    drop(terminal);
    crate::output::say("all processes that were named have ended");
    Ok(ExitCode::SUCCESS)
}
