//! Common parts of all experiments: cases, rounds, rows, gates and tables.
//!
//! An experiment is a value that holds its arguments ([`Experiment`]). [`conduct`] does the work
//! that all of them share. It checks the arguments and the machine, installs packages on request,
//! takes the signals, describes the machine, lets the experiment measure its rows, and judges them.
//! The experiment states its subjects, its way of measuring, its gates and its tables.

use crate::bench::{Gate, Head, Judged, MachineReport, Place, gates_table, must_fit};
use crate::chart::Chart;
use crate::child::{Stopped, check, stop_signals};
use crate::install;
use anyhow::{Result, bail, ensure};
use megapage_kernel::effective_uid;
use megapage_kernel::spawn::Signals;
use megapage_report::bench::heading;
use megapage_report::line::{Paint, Style, show, wrap};
use megapage_report::{WIDTH, table};
use megapage_units::Bytes;
use serde::Serialize;

/// Options of every experiment.
#[derive(Clone, Debug, Default)]
pub struct Plan {
    /// Rounds that medians are taken of.
    pub runs: u32,
    /// True if packages that the experiment lacks are installed first (apt-get).
    pub install: bool,
}

impl Plan {
    /// Returns a plan of `runs` rounds, without installing packages.
    pub fn of(runs: u32) -> Plan {
        Plan { runs, install: false }
    }
}

/// Demands of an experiment on the machine.
#[derive(Clone, Debug, Default)]
pub struct Needs {
    /// The part that only root can do; `None` if any user can run it.
    pub root: Option<&'static str>,
    /// Memory that it takes at once.
    pub memory: Bytes,
    /// The option that makes it take less.
    pub smaller: &'static str,
    /// Packages that are absent; without them it cannot run, or skips a part.
    pub packages: Vec<&'static str>,
    /// True if it cannot run without them.
    pub must_install: bool,
}

/// One experiment, as it was asked for.
pub trait Experiment {
    /// Name on the command line and in the report.
    const NAME: &'static str;
    /// Rounds by default, the least and the most.
    const RUNS: [u32; 3] = [5, 1, 100];
    /// Its cases by name; empty if it has only one.
    const CASES: &'static [&'static str] = &[];
    /// Its findings.
    type Found: Found;

    /// Returns the cases that were asked for; empty: all.
    fn cases(&self) -> &[String] {
        &[]
    }

    /// Returns true if the case was asked for.
    fn wants(&self, case: &str) -> bool {
        self.cases().is_empty() || self.cases().iter().any(|name| name == case)
    }

    /// Refuses arguments that make no sense, beyond rounds and cases.
    fn validate(&self) -> Result<()> {
        Ok(())
    }

    /// Returns its demands on the machine.
    fn needs(&self) -> Needs {
        Needs::default()
    }

    /// Installs its other requirements besides packages, if the user wants that. It gives each
    /// command to `say` before it runs it. Optional ones that are missing are no error.
    fn install(&self, _say: &mut dyn FnMut(&str)) -> Result<()> {
        Ok(())
    }

    /// Returns its actions as shell lines and comments.
    fn dry_run(&self, plan: &Plan) -> Vec<String>;

    /// Measures every row in every round. It restores all that it changes when it returns, also
    /// with an error.
    fn measure(&self, stage: &mut Stage<'_>) -> Result<Self::Found>;
}

/// Findings of an experiment: rows of values, as data.
pub trait Found: Serialize {
    /// Returns the demands on them, judged.
    fn gates(&self) -> Vec<Gate> {
        Vec::new()
    }

    /// Describes the measurement, in words that follow the name in the first line.
    fn title(&self, runs: u32) -> String {
        format!("medians of {runs} interleaved rounds")
    }

    /// Returns its tables.
    fn sections(&self) -> Vec<Section>;

    /// Returns its faults: a report with a note is not clean.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns pictures, each with a name for its file.
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
    /// Makes a table under a line that describes it.
    pub fn new<R, C>(before: impl Into<String>, header: &[&str], rows: impl IntoIterator<Item = R>) -> Section
    where
        R: IntoIterator<Item = C>,
        C: Into<String>,
    {
        let rows: Vec<Vec<String>> =
            rows.into_iter().map(|row| row.into_iter().map(Into::into).collect()).collect();
        Section { before: before.into(), table: table(header, rows), after: Vec::new() }
    }

    /// Makes text without a table.
    pub fn text(line: impl Into<String>) -> Section {
        Section { after: vec![line.into()], ..Section::default() }
    }

    /// Adds a line after the table.
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

/// Wraps a long line.
fn wrapped(text: &str) -> String {
    let width = WIDTH as usize;
    show(&wrap(Style::PLAIN, text, width - 2), Paint::Plain, width)
}

/// A whole report: `megapage.bench/1`.
#[derive(Clone, Debug, Serialize)]
pub struct Report<F> {
    /// The common first part of every report: name, time, machine.
    #[serde(flatten)]
    pub head: Head,
    /// Rounds that were asked for.
    pub runs: u32,
    /// The finding.
    #[serde(flatten)]
    pub found: F,
    /// The demands, their verdicts, and their former outcomes.
    pub gates: Vec<Judged>,
}

impl<F: Found> Report<F> {
    /// Returns true if every gate holds and there was no fault.
    pub fn is_clean(&self) -> bool {
        self.gates.iter().all(|gate| gate.holds) && self.found.notes().is_empty()
    }

    /// Renders the report as text of at most 100 columns.
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

/// A run that failed for its own reason: a daemon that ended, a workload that did not answer.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Failure {
    /// The configuration.
    pub configuration: &'static str,
    /// The reason.
    pub why: String,
}

impl Failure {
    /// Renders them as notes.
    pub fn notes(failures: &[Failure]) -> Vec<String> {
        failures.iter().map(|failure| format!("{}: {}", failure.configuration, failure.why)).collect()
    }
}

/// Resources of a running experiment.
pub struct Stage<'a> {
    /// Its options.
    pub plan: &'a Plan,
    /// The programs.
    pub place: &'a Place,
    /// The signals that stop it.
    pub signals: &'a Signals,
    /// Callback that gets a line for each run.
    pub progress: &'a mut dyn FnMut(&str),
}

impl Stage<'_> {
    /// Prints a line for the user.
    pub fn say(&mut self, line: &str) {
        (self.progress)(line);
    }
}

/// Order of the rows in a round.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// The same in each.
    Listed,
    /// Reversed in every other round, so that a change over time favours none.
    ToAndFro,
    /// Each row begins a round in its turn, so that the after-effects of the one before are the
    /// same for all.
    Rotating,
    /// Rotating by pairs of rounds, the second of each pair backwards, so that each row follows
    /// either neighbour equally often.
    Balanced,
}

impl Order {
    /// Returns the rows' numbers in the order of round `round`, counted from 0.
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

/// Returns the finding of one run, or the reason for its failure, in words. Fails if the user asked
/// to stop.
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

/// Returns those of `all` that were asked for by name, in the order of a round; all if no name was
/// given. `what` is their noun, for the error.
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

/// Refuses invalid options: rounds, cases, and those that the experiment itself refuses.
pub fn validate<E: Experiment>(experiment: &E, plan: &Plan) -> Result<()> {
    let [_, least, most] = E::RUNS;
    ensure!((least..=most).contains(&plan.runs), "{} runs: from {least} to {most} are possible", plan.runs);
    select(E::CASES, |case| case, experiment.cases(), &format!("case of {}", E::NAME))?;
    experiment.validate()
}

/// Runs an experiment. `progress` gets a line for each run. All changes are undone at the end, also
/// after a failure or a signal to stop.
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
    // Before the signals are blocked: the programs that it starts must end by them.
    if plan.install {
        experiment.install(progress)?;
    }
    must_fit(E::NAME, needs.memory, needs.smaller)?;
    let mut head = Head::begin(E::NAME)?;
    let signals = stop_signals()?;
    check(&signals)?;
    let found = experiment.measure(&mut Stage { plan, place, signals: &signals, progress })?;
    // Read again: the remains of a killed experiment are cleaned up by now.
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
