//! What every experiment is: cases, rounds, rows, gates and tables.
//!
//! An experiment is a value of its own arguments ([`Experiment`]). [`conduct`] does what all of them share: it checks the
//! arguments and the machine, installs what is asked for, takes the signals, describes the machine, has the experiment
//! measure its rows, and judges them. The experiment states what it compares, how it measures, its gates and its tables.

use crate::bench::{Gate, Head, Judged, MachineReport, Place, gates_table, heading, must_fit};
use crate::chart::Chart;
use crate::child::{Stopped, check, stop_signals};
use crate::install;
use anyhow::{Result, bail, ensure};
use megapage_kernel::effective_uid;
use megapage_kernel::spawn::Signals;
use megapage_report::line::{Paint, Style, show, wrap};
use megapage_report::{WIDTH, table};
use megapage_units::Bytes;
use serde::Serialize;

/// Options of every experiment.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Rounds that medians are taken of.
    pub runs: u32,
    /// Install first what the experiment lacks (apt-get).
    pub install: bool,
}

impl Plan {
    /// So many rounds, with what is installed.
    pub fn of(runs: u32) -> Plan {
        Plan { runs, install: false }
    }
}

/// What an experiment demands of the machine.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// What only root can do; `None` where any user can run it.
    pub root: Option<&'static str>,
    /// Memory that it takes at once.
    pub memory: Bytes,
    /// The option that makes it take less.
    pub smaller: &'static str,
    /// Packages that are absent and without which it cannot run, or leaves something out.
    pub packages: Vec<&'static str>,
    /// Whether it cannot run without them.
    pub must_install: bool,
}

/// One experiment, as it was asked for.
pub trait Experiment {
    /// As on the command line and in the report.
    const NAME: &'static str;
    /// Rounds by default, the least and the most.
    const RUNS: [u32; 3] = [5, 1, 100];
    /// Its parts by name; none where it is one.
    const CASES: &'static [&'static str] = &[];
    /// What it finds.
    type Found: Found;

    /// The cases that were asked for; none: all.
    fn cases(&self) -> &[String] {
        &[]
    }

    /// Whether the case was asked for.
    fn wants(&self, case: &str) -> bool {
        self.cases().is_empty() || self.cases().iter().any(|name| name == case)
    }

    /// Refuses arguments that make no sense, beyond rounds and cases.
    fn validate(&self) -> Result<()> {
        Ok(())
    }

    /// What it demands of the machine.
    fn needs(&self) -> Needs {
        Needs::default()
    }

    /// Installs what it needs beyond packages, where the user wants that. Each command is given to `say` before it runs. What it
    /// can do without is no error.
    fn install(&self, _say: &mut dyn FnMut(&str)) -> Result<()> {
        Ok(())
    }

    /// What it would do, as shell lines and comments.
    fn dry_run(&self, plan: &Plan) -> Vec<String>;

    /// Measures every row in every round. Whatever it changes is put back when it returns, also with an error.
    fn measure(&self, stage: &mut Stage<'_>) -> Result<Self::Found>;
}

/// What an experiment found: rows of values, as data.
pub trait Found: Serialize {
    /// What is demanded of them.
    fn gates(&self) -> Vec<Gate> {
        Vec::new()
    }

    /// What was measured, in words that follow the name in the first line.
    fn title(&self, runs: u32) -> String {
        format!("medians of {runs} interleaved rounds")
    }

    /// Its tables.
    fn sections(&self) -> Vec<Section>;

    /// What went wrong: a report with a note is not clean.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Pictures, each with a name for its file.
    fn charts(&self) -> Vec<(&'static str, Chart)> {
        Vec::new()
    }
}

/// A table with a line of text before it and some after it.
#[derive(Clone, Debug, Default)]
pub struct Section {
    before: String,
    table: String,
    after: Vec<String>,
}

impl Section {
    /// A table under a line that says what it shows.
    pub fn new<R, C>(before: impl Into<String>, header: &[&str], rows: impl IntoIterator<Item = R>) -> Section
    where
        R: IntoIterator<Item = C>,
        C: Into<String>,
    {
        let rows: Vec<Vec<String>> =
            rows.into_iter().map(|row| row.into_iter().map(Into::into).collect()).collect();
        Section { before: before.into(), table: table(header, rows), after: Vec::new() }
    }

    /// Text without a table.
    pub fn text(line: impl Into<String>) -> Section {
        Section { after: vec![line.into()], ..Section::default() }
    }

    /// With a line after the table.
    pub fn then(mut self, line: impl Into<String>) -> Section {
        self.after.push(line.into());
        self
    }

    pub(crate) fn render(&self) -> String {
        let mut text = String::from("\n");
        if !self.before.is_empty() {
            text += &wrapped(&self.before);
        }
        text += &self.table;
        self.after.iter().for_each(|line| text += &wrapped(line));
        text
    }
}

/// A long line as several.
fn wrapped(text: &str) -> String {
    let width = WIDTH as usize;
    show(&wrap(Style::PLAIN, text, width - 2), Paint::Plain, width)
}

/// A whole report: `megapage.bench/1`.
#[derive(Clone, Debug, Serialize)]
pub struct Report<F> {
    /// What every report begins with: name, time, machine.
    #[serde(flatten)]
    pub head: Head,
    /// Rounds that were asked for.
    pub runs: u32,
    /// The finding.
    #[serde(flatten)]
    pub found: F,
    /// The demands, whether they hold, and what they were before.
    pub gates: Vec<Judged>,
}

impl<F: Found> Report<F> {
    /// Whether every gate holds and nothing went wrong.
    pub fn is_clean(&self) -> bool {
        self.gates.iter().all(|gate| gate.holds) && self.found.notes().is_empty()
    }

    /// The report as text of at most 100 columns.
    pub fn human(&self) -> String {
        let mut text = wrapped(&format!("{}: {}", self.head.bench, self.found.title(self.runs)));
        text += &heading(&self.head);
        self.found.sections().iter().for_each(|section| text += &section.render());
        self.found.notes().iter().for_each(|note| text += &wrapped(&format!("! {note}")));
        if !self.gates.is_empty() {
            text += &format!("\n{}\n", gates_table(&self.gates).trim_end());
        }
        text
    }
}

/// A run that failed for a reason of its own: a daemon that ended, a workload that did not answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failure {
    /// The configuration.
    pub configuration: &'static str,
    /// Why.
    pub why: String,
}

impl Failure {
    /// As notes.
    pub fn notes(failures: &[Failure]) -> Vec<String> {
        failures.iter().map(|failure| format!("{}: {}", failure.configuration, failure.why)).collect()
    }
}

/// What an experiment works with.
pub struct Stage<'a> {
    /// How it was asked for.
    pub plan: &'a Plan,
    /// The programs.
    pub place: &'a Place,
    /// The signals that stop it.
    pub signals: &'a Signals,
    /// Is given a line for each run.
    pub progress: &'a mut dyn FnMut(&str),
}

impl Stage<'_> {
    /// A line for the user.
    pub fn say(&mut self, line: &str) {
        (self.progress)(line);
    }
}

/// In which order rows take their turns in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The same in each.
    Listed,
    /// Back in every other round, so that what changes with time favours none.
    ToAndFro,
    /// Each begins a round in its turn, so that what the one before leaves behind befalls all alike.
    Rotating,
    /// Rotating by pairs of rounds, the second of each pair backwards, so that each follows either neighbour as often.
    Balanced,
}

impl Order {
    /// The rows' numbers in the order of round `round`, counted from 0.
    pub fn turns(self, round: u32, rows: usize) -> Vec<usize> {
        let mut turns: Vec<usize> = (0..rows).collect();
        match self {
            Order::ToAndFro if round % 2 == 1 => turns.reverse(),
            Order::Rotating if rows > 0 => turns.rotate_left(round as usize % rows),
            Order::Balanced if rows > 0 => {
                turns.rotate_left(round as usize / 2 % rows);
                if round % 2 == 1 {
                    turns.reverse();
                }
            }
            _ => {}
        }
        turns
    }
}

/// What one run found, or why it failed, in words; an error where the user asked to stop.
pub fn found_or_why<T>(run: Result<T>) -> Result<Result<T, String>> {
    match run {
        Err(error) if error.is::<Stopped>() => Err(error),
        run => Ok(run.map_err(|error| format!("{error:#}"))),
    }
}

/// Adds a note that is not there already.
pub fn add_note(notes: &mut Vec<String>, text: String) {
    if !notes.contains(&text) {
        notes.push(text);
    }
}

/// Of `all` what was asked for by name, in the order of a round; all where nothing was. `what` they are, for the error.
pub fn select<T: Clone>(
    all: &[T],
    name: impl Fn(&T) -> &'static str,
    asked: &[String],
    what: &str,
) -> Result<Vec<T>> {
    if let Some(unknown) = asked.iter().find(|asked| all.iter().all(|one| name(one) != **asked)) {
        let known: Vec<_> = all.iter().map(&name).collect();
        bail!("'{unknown}' is no {what}; known: {}", known.join(", "));
    }
    let chosen = |one: &&T| asked.is_empty() || asked.iter().any(|asked| asked == name(one));
    Ok(all.iter().filter(chosen).cloned().collect())
}

/// Refuses what is no experiment: rounds, cases, and what the experiment itself refuses.
pub fn validate<E: Experiment>(experiment: &E, plan: &Plan) -> Result<()> {
    let [_, least, most] = E::RUNS;
    ensure!((least..=most).contains(&plan.runs), "{} runs: from {least} to {most} are possible", plan.runs);
    select(E::CASES, |case| case, experiment.cases(), &format!("case of {}", E::NAME))?;
    experiment.validate()
}

/// Runs an experiment. `progress` is given a line for each run. What it changes is put back at the end, also after a
/// failure or a signal to stop.
pub fn conduct<E: Experiment>(
    experiment: &E,
    plan: &Plan,
    place: &Place,
    progress: &mut dyn FnMut(&str),
) -> Result<Report<E::Found>> {
    validate(experiment, plan)?;
    let needs = experiment.needs();
    if let Some(what) = needs.root {
        ensure!(effective_uid() == 0, "{what}: run this as root");
    }
    if !needs.packages.is_empty() {
        if plan.install {
            install::debian(&needs.packages, progress)?;
        } else if needs.must_install {
            let packages = needs.packages.join(" ");
            bail!("{} needs {packages}: apt-get install {packages} (or --install)", E::NAME);
        }
    }
    // Before the signals are blocked: what it starts is ended by them.
    if plan.install {
        experiment.install(progress)?;
    }
    must_fit(E::NAME, needs.memory, needs.smaller)?;
    let mut head = Head::begin(E::NAME)?;
    let signals = stop_signals()?;
    check(&signals)?;
    let found = experiment.measure(&mut Stage { plan, place, signals: &signals, progress })?;
    // Again: what an experiment that was killed had left is put back by now.
    head.machine = MachineReport::read()?;
    let gates = found.gates().into_iter().map(Judged::from).collect();
    Ok(Report { head, runs: plan.runs, found, gates })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_its_turn_in_every_order() {
        assert_eq!(Order::Listed.turns(3, 3), [0, 1, 2]);
        assert_eq!(
            (Order::ToAndFro.turns(0, 3), Order::ToAndFro.turns(1, 3)),
            (vec![0, 1, 2], vec![2, 1, 0])
        );
        assert_eq!(Order::Rotating.turns(4, 3), [1, 2, 0]);
        assert!(Order::Rotating.turns(1, 0).is_empty());
        assert_eq!(Order::Balanced.turns(2, 3), [1, 2, 0]);
        assert_eq!(Order::Balanced.turns(3, 3), [0, 2, 1]);
        assert!(Order::Balanced.turns(1, 0).is_empty());
    }

    #[test]
    fn a_name_that_is_not_known_is_refused_with_those_that_are() {
        let asked = |names: &[&str]| {
            let names: Vec<String> = names.iter().map(|name| name.to_string()).collect();
            select(&["one", "two", "three"], |name| name, &names, "number")
        };
        assert_eq!(asked(&[]).unwrap().len(), 3);
        assert_eq!(asked(&["three", "one"]).unwrap(), ["one", "three"], "in the order of a round");
        assert_eq!(asked(&["four"]).unwrap_err().to_string(), "'four' is no number; known: one, two, three");
    }
}
