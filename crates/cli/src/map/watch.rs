//! `megapage map --watch`: heat over time, live on a terminal, and as text or JSON at the end.

use super::Args;
use crate::output::{is_dumb, paint_blocks, print_painted, progress, say};
use crate::terminal::{Request, Terminal};
use anyhow::{Context, Result, bail};
use megapage_kernel::KernelRoot;
use megapage_kernel::spawn::{Signals, die_of, signal, wait_any_readable};
use megapage_observe::{HeatWatch, Options};
use megapage_report::heat::{HeatMap, SCHEMA, screen, text};
use megapage_report::json;
use megapage_units::Pid;
use std::io::IsTerminal;
use std::os::fd::AsFd;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The end of a watch.
enum End {
    /// The time is over, or the user has left.
    Enough,
    /// This signal arrived.
    Signal(i32),
    /// The process cannot be observed any more, for this reason.
    Process(String),
}

/// Runs the watch. Returns 0 with a picture. If the process ends meanwhile, the picture shows what
/// was seen until then.
pub fn main(args: &Args, root: &KernelRoot, pid: Pid) -> Result<ExitCode> {
    let options = Options { window: args.every, ..args.sampling.options() };
    let mut watch = HeatWatch::start(root, pid, options)?;
    let name = watch.process().map(|process| process.name.clone()).unwrap_or_default();
    let is_terminal = std::io::stdin().is_terminal() && std::io::stdout().is_terminal() && !is_dumb();
    let end = match is_terminal && !args.json {
        true => live(args, &mut watch, pid, &name)?,
        false => blind(args, &mut watch, pid)?,
    };
    let heat = watch.heat();
    if heat.rows.is_empty() {
        match end {
            End::Process(what) => bail!("{what}"),
            End::Signal(number) => die_of(number),
            End::Enough => {
                bail!("nothing was sampled in that time: give more --seconds, or a higher --budget")
            }
        }
    }
    let map = HeatMap { pid, name: &name, heat };
    print_painted(&match args.json {
        true => json(SCHEMA, &map.document(watch.process())) + "\n",
        false => text(&map, paint_blocks()),
    })?;
    match end {
        End::Enough => {}
        End::Process(what) => say(what),
        End::Signal(number) => die_of(number),
    }
    Ok(ExitCode::SUCCESS)
}

/// Watches on a terminal, which is redrawn with each sample.
fn live(args: &Args, watch: &mut HeatWatch, pid: Pid, name: &str) -> Result<End> {
    let mut terminal = Terminal::take().context("the terminal cannot be taken over; try --json")?;
    let end = Instant::now() + args.whole_time();
    loop {
        let map = HeatMap { pid, name, heat: watch.heat() };
        terminal.draw(&screen(&map, paint_blocks(), terminal.size()), paint_blocks())?;
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(End::Enough);
        }
        match terminal.wait(watch.due(left))? {
            Request::Quit => return Ok(End::Enough),
            Request::Die(number) => return Ok(End::Signal(number)),
            Request::Nothing => {
                if let Err(missed) = watch.look() {
                    return Ok(End::Process(missed.what));
                }
            }
            _ => {}
        }
    }
}

/// Watches without a terminal, until the time is over or a signal arrives.
fn blind(args: &Args, watch: &mut HeatWatch, pid: Pid) -> Result<End> {
    let signals = Signals::take(&[signal::SIGINT, signal::SIGTERM, signal::SIGHUP]).context("signals")?;
    let time = args.whole_time();
    progress(format!("watching process {pid} for {:.0} s", time.as_secs_f64()));
    let end = Instant::now() + time;
    loop {
        let left = end.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Ok(End::Enough);
        }
        if wait_any_readable(&[signals.as_fd()], watch.due(left))?
            && let Some(came) = signals.next()?
        {
            return Ok(if came.number == signal::SIGINT { End::Enough } else { End::Signal(came.number) });
        }
        if let Err(missed) = watch.look() {
            return Ok(End::Process(missed.what));
        }
    }
}

/// Duration of a watch without `--seconds`.
pub const USUAL: Duration = Duration::from_secs(60);
