//! KSM as a peer of recovery: the same program, marked for merging, whose pages of zeros ksmd
//! replaces by the shared page of zeros. The rows show the memory that it recovers, the time and
//! the processor time, beside the daemon's executor.

use super::Stage;
use super::worker::Worker;
use crate::bench::{Gate, Spread};
use crate::child::sleep;
use anyhow::{Context, Result, ensure};
use megapage_kernel::process::read_stat;
use megapage_kernel::{KernelRoot, cpu_time_of};
use megapage_testing::ksm::{self, Ksm, KsmChange, KsmControls, KsmRun};
use megapage_units::Pid;
use serde::Serialize;
use std::time::{Duration, Instant};

/// One setting of KSM.
#[derive(Clone, Copy, Debug)]
pub(super) struct KsmSetting {
    pub(super) name: &'static str,
    controls: KsmControls,
}

/// Subject of the gates; its name in the rows.
pub(super) const OURS: &str = "megapage";
/// Setting of ksmd without a pause: no sleep, and no batch that ends before the scan does. The
/// advisor is off: it would choose so few pages that a scan takes 200 s, and beside it
/// pages_to_scan is refused. Smart scan stays on, as by default: it spares ksmd pages that did not
/// merge in earlier scans.
const HARD: &str = "ksm-hard";
/// The settings in the order of a round. Without use_zero_pages pages of zeros would merge like
/// others, into one for each 256.
pub(super) const SETTINGS: [KsmSetting; 2] = [
    KsmSetting { name: "ksm", controls: controls(100, Duration::from_millis(20)) },
    KsmSetting { name: HARD, controls: controls(1 << 20, Duration::ZERO) },
];

impl KsmSetting {
    /// Returns true if a gate compares with it.
    pub(super) fn is_compared(&self) -> bool {
        self.name == HARD
    }

    /// Returns shell lines that set it.
    pub(super) fn shell_lines(&self) -> Vec<String> {
        self.controls.shell_lines()
    }
}

const fn controls(pages_to_scan: u64, sleep: Duration) -> KsmControls {
    KsmControls {
        advisor: Some(false),
        pages_to_scan: Some(pages_to_scan),
        sleep: Some(sleep),
        smart_scan: Some(true),
        use_zero_pages: Some(true),
        run: Some(KsmRun::Merge),
    }
}

/// Share of its zeros from which on memory counts as recovered.
const RECOVERED: f64 = 0.95;
/// Share of its zeros from which on recovery counts as begun: ksmd looks at each page once before
/// it merges the first.
const BEGUN: f64 = 0.01;
/// Longest wait for it. At its defaults it scans 1 GiB in 65 s.
const LONGEST: Duration = Duration::from_secs(100);
const LOOK: Duration = Duration::from_millis(10);

/// Recovery by each of the programs.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Merging {
    /// Ours, and KSM in each way it was set.
    pub rows: Vec<RecoveryRow>,
    /// The reason for which KSM did not run.
    pub absent: Option<String>,
}

/// One way to recover memory of zeros.
#[derive(Clone, Debug, Default, Serialize)]
pub struct RecoveryRow {
    /// Its name.
    pub name: &'static str,
    /// The settings of KSM, as shell lines.
    pub settings: Vec<String>,
    /// Every run.
    pub samples: Vec<RecoverySample>,
    /// Bytes that ceased to be resident, as the kernel counts them for the program.
    pub recovered_bytes: Option<Spread>,
    /// Seconds until 95 % of the zeros were recovered.
    pub seconds: Option<Spread>,
    /// GiB recovered for each of them.
    pub gib_per_second: Option<Spread>,
    /// Processor seconds of ksmd, or of the executor and its helper processes, until then.
    pub cpu_seconds: Option<Spread>,
    /// The same for each GiB recovered.
    pub cpu_seconds_per_gib: Option<Spread>,
    /// True if times and rates are extrapolated, from the first memory recovered on.
    pub extrapolated: bool,
}

/// One run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct RecoverySample {
    /// Its round: 1 for the first.
    pub round: u32,
    /// Bytes of zeros in the program's huge pages before.
    pub zero_bytes: u64,
    /// Bytes that ceased to be resident.
    pub recovered_bytes: u64,
    /// The seconds for which it was watched.
    pub watched_seconds: f64,
    /// Processor seconds in that time.
    pub cpu_seconds: f64,
    /// The time at which the first memory was recovered, and the processor seconds until then;
    /// `None` if none was.
    pub begun: Option<(f64, f64)>,
    /// Base pages that ksmd scanned in that time.
    pub pages_scanned: Option<u64>,
}

/// Values at one moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct Seen {
    pub(super) seconds: f64,
    pub(super) resident: u64,
    pub(super) cpu: f64,
}

impl RecoverySample {
    /// Makes a sample of two looks, before and after.
    pub(super) fn between(round: u32, zero_bytes: u64, before: Seen, after: Seen) -> RecoverySample {
        RecoverySample {
            round,
            zero_bytes,
            recovered_bytes: before.resident.saturating_sub(after.resident),
            watched_seconds: after.seconds - before.seconds,
            cpu_seconds: after.cpu - before.cpu,
            begun: None,
            pages_scanned: None,
        }
    }

    fn share(&self) -> f64 {
        self.recovered_bytes as f64 / self.zero_bytes.max(1) as f64
    }

    fn is_recovered(&self) -> bool {
        self.share() >= RECOVERED
    }

    /// Returns bytes, seconds and processor seconds until memory is recovered: as measured, or
    /// extrapolated from the first memory recovered on. `None` if none was recovered.
    fn until_recovered(&self) -> Option<(f64, f64, f64)> {
        if self.is_recovered() {
            return Some((self.recovered_bytes as f64, self.watched_seconds, self.cpu_seconds));
        }
        let (seconds, cpu) = self.begun?;
        let factor = RECOVERED / self.share();
        let on = |from: f64, to: f64| from + (to - from) * factor;
        let bytes = RECOVERED * self.zero_bytes as f64;
        Some((bytes, on(seconds, self.watched_seconds), on(cpu, self.cpu_seconds)))
    }
}

/// Watches until memory is recovered, or for [`LONGEST`]. The first look is before the first wait,
/// which starts ksmd.
fn watch(
    round: u32,
    zero_bytes: u64,
    mut look: impl FnMut() -> Result<Seen>,
    mut wait: impl FnMut() -> Result<()>,
) -> Result<RecoverySample> {
    let before = look()?;
    let (mut last, mut begun) = (before, None);
    loop {
        wait()?;
        let now = look()?;
        let sample = RecoverySample::between(round, zero_bytes, before, now);
        if begun.is_none() && sample.share() >= BEGUN {
            begun = Some((last.seconds - before.seconds, last.cpu - before.cpu));
        }
        if sample.is_recovered() || sample.watched_seconds >= LONGEST.as_secs_f64() {
            return Ok(RecoverySample { begun, ..sample });
        }
        last = now;
    }
}

impl Merging {
    /// Makes one row for each; KSM's only if it can be used here.
    pub(super) fn begin(probe: &mut Worker, stage: &mut Stage<'_>) -> Result<Merging> {
        let root = KernelRoot::live();
        let mut absent = why_absent(ksm::read(&root)?, ksm::thread(&root)?, &others(&root, probe)?);
        if absent.is_none() {
            let marked = probe.merge(true, stage.signals).and_then(|()| probe.merge(false, stage.signals));
            let begun = marked.and_then(|()| Ok(KsmChange::begin(&root)?));
            absent = match begun {
                Err(error) if Stage::is_final(&error) => return Err(error),
                Err(error) => Some(format!("{error:#}")),
                Ok(change) => {
                    change.recovered().iter().for_each(|setting| stage.say(&setting.to_string()));
                    None
                }
            };
        }
        let mut rows = vec![RecoveryRow::of(OURS, Vec::new())];
        match &absent {
            Some(why) => stage.say(&format!("absent: ksm: {why}")),
            None => rows
                .extend(SETTINGS.iter().map(|setting| RecoveryRow::of(setting.name, setting.shell_lines()))),
        }
        Ok(Merging { rows, absent })
    }

    /// Adds a run to row `at`, and reports it.
    pub(super) fn note(&mut self, at: usize, sample: RecoverySample, stage: &mut Stage<'_>) {
        let row = &mut self.rows[at];
        row.samples.push(sample);
        row.summarise();
        stage.say(&format!(
            "{}/{} {}: {:.0} % of the zeros in {:.2} s, {:.3} CPU s",
            sample.round,
            stage.runs,
            row.name,
            100.0 * sample.share(),
            sample.watched_seconds,
            sample.cpu_seconds
        ));
    }

    pub(super) fn gates(&self) -> Option<Gate> {
        let row = |name: &str| self.rows.iter().find(|row| row.name == name);
        let (ours, hard) = (row(OURS)?, row(HARD)?);
        let cpu = |row: &RecoveryRow| row.cpu_seconds_per_gib.map(|spread| spread.median);
        let show = |row: &RecoveryRow| {
            let mark = if row.extrapolated { " (extrapolated)" } else { "" };
            cpu(row).map_or("not recovered".to_string(), |cpu| format!("{cpu:.3} CPU s{mark}"))
        };
        let is_less = match (cpu(ours), cpu(hard)) {
            (Some(ours), Some(hard)) => ours < hard,
            (ours, None) => ours.is_some() && !hard.samples.is_empty(),
            (None, _) => false,
        };
        Some(Gate {
            case: "recovery",
            demand: "a GiB of zeros recovered for less processor time than by KSM tuned hard".into(),
            found: format!("{} against {}", show(ours), show(hard)),
            holds: is_less && !ours.extrapolated,
        })
    }
}

/// Returns other programs whose memory ksmd would scan in the probe's time, by name and number.
fn others(root: &KernelRoot, probe: &Worker) -> Result<Vec<String>> {
    let others = ksm::users(root)?.into_iter().filter(|pid| *pid != probe.pid());
    let name = |pid| Some(format!("{} ({pid})", read_stat(root, pid).ok()?.name));
    Ok(others.filter_map(name).collect())
}

/// Returns the reason for which KSM cannot be a peer here.
fn why_absent(found: Option<Ksm>, thread: Option<Pid>, others: &[String]) -> Option<String> {
    let Some(found) = found else { return Some("this kernel has no KSM (CONFIG_KSM)".into()) };
    if found.runs || found.pages_shared > 0 {
        let run = u8::from(found.runs);
        return Some(format!("it is in use: run is {run}, pages_shared {}", found.pages_shared));
    }
    if !others.is_empty() {
        return Some(format!("ksmd would scan other programs as well: {}", others.join(", ")));
    }
    let unseen = "ksmd is not to be seen, as in a container: its processor time is unknown";
    thread.is_none().then(|| unseen.into())
}

/// Marks the probe, which is huge by now and has `zero_bytes` of zeros, and gives it to ksmd.
/// Afterwards nothing is merged any more, and KSM is set as before.
pub(super) fn turn(
    setting: &KsmSetting,
    probe: &mut Worker,
    round: u32,
    zero_bytes: u64,
    stage: &Stage<'_>,
) -> Result<RecoverySample> {
    let root = KernelRoot::live();
    let thread = ksm::thread(&root)?.context("ksmd is gone")?;
    let mut change = KsmChange::begin(&root).context("the settings of KSM")?;
    probe.merge(true, stage.signals)?;
    // Before and after: a virtual machine that starts meanwhile marks its memory by default.
    let alone = |probe: &Worker| {
        let others = others(&root, probe)?;
        ensure!(others.is_empty(), "ksmd scans other programs as well: {}", others.join(", "));
        Ok(())
    };
    alone(probe)?;
    let scanned = || Ok::<_, anyhow::Error>(ksm::read(&root)?.unwrap_or_default().pages_scanned);
    let (start, before) = (Instant::now(), scanned()?);
    let watched = {
        let probe = &*probe;
        let look = || {
            let cpu = cpu_time_of(thread).or_else(|_| read_stat(&root, thread).map(|stat| stat.cpu))?;
            let resident = probe.rss()?;
            Ok(Seen { seconds: start.elapsed().as_secs_f64(), resident, cpu: cpu.as_secs_f64() })
        };
        let mut runs = false;
        watch(round, zero_bytes, look, || {
            if !std::mem::replace(&mut runs, true) {
                change.set(&setting.controls).context("the settings of KSM")?;
            }
            sleep(stage.signals, LOOK)
        })
    };
    let scanned = scanned()?.saturating_sub(before);
    let is_alone = alone(probe);
    // ksmd would begin the next turn with the checksums of this one, which spare it its first scan.
    let forget = KsmControls { run: Some(KsmRun::Unmerge), ..setting.controls };
    change.set(&forget).context("the settings of KSM")?;
    drop(change);
    probe.merge(false, stage.signals)?;
    let watched = watched?;
    is_alone.map(|()| RecoverySample { pages_scanned: Some(scanned), ..watched })
}

impl RecoveryRow {
    fn of(name: &'static str, settings: Vec<String>) -> RecoveryRow {
        RecoveryRow { name, settings, ..RecoveryRow::default() }
    }

    fn summarise(&mut self) {
        let gib = |bytes: f64| bytes / (1u64 << 30) as f64;
        self.recovered_bytes = Spread::of(self.samples.iter().map(|sample| sample.recovered_bytes as f64));
        let until: Option<Vec<(f64, f64, f64)>> =
            self.samples.iter().map(RecoverySample::until_recovered).collect();
        // A run that recovered nothing has no time, and the others alone would flatter.
        let until = until.unwrap_or_default();
        let spread = |value: fn(&(f64, f64, f64)) -> f64| Spread::of(until.iter().map(value));
        self.seconds = spread(|(_, seconds, _)| *seconds);
        self.cpu_seconds = spread(|(_, _, cpu)| *cpu);
        self.gib_per_second = Spread::of(until.iter().map(|(bytes, seconds, _)| gib(*bytes) / seconds));
        self.cpu_seconds_per_gib = Spread::of(until.iter().map(|(bytes, _, cpu)| cpu / gib(*bytes)));
        self.extrapolated = !until.is_empty() && self.samples.iter().any(|sample| !sample.is_recovered());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GIB: u64 = 1 << 30;

    /// Makes a run with these results.
    fn sample(share: f64, seconds: f64, cpu: f64, begun: Option<(f64, f64)>) -> RecoverySample {
        RecoverySample {
            round: 1,
            zero_bytes: GIB,
            recovered_bytes: (GIB as f64 * share) as u64,
            watched_seconds: seconds,
            cpu_seconds: cpu,
            begun,
            pages_scanned: None,
        }
    }

    fn row(name: &'static str, samples: &[RecoverySample]) -> RecoveryRow {
        let mut row = RecoveryRow { samples: samples.to_vec(), ..RecoveryRow::of(name, Vec::new()) };
        row.summarise();
        row
    }

    #[test]
    fn what_is_watched_ends_when_memory_is_recovered_or_time_is_up() {
        // ksmd scans for 3 s, and recovers a tenth in each second then.
        let watched = |a_second: f64| {
            let mut now = -1.0_f64;
            let look = || {
                now += 1.0;
                let freed = ((now - 3.0).max(0.0) * a_second).min(1.0) * GIB as f64;
                Ok(Seen { seconds: 50.0 + now, resident: 2 * GIB - freed as u64, cpu: 7.0 + now / 4.0 })
            };
            watch(2, GIB, look, || Ok(())).unwrap()
        };
        let found = watched(0.1);
        assert_eq!((found.round, found.watched_seconds, found.cpu_seconds), (2, 13.0, 3.25));
        assert_eq!(found.recovered_bytes, GIB);
        // The last moment at which nothing was recovered.
        assert_eq!(found.begun, Some((3.0, 0.75)));
        assert_eq!(found.until_recovered(), Some((GIB as f64, 13.0, 3.25)));

        let late = watched(0.001);
        assert_eq!(late.watched_seconds, LONGEST.as_secs_f64());
        assert!(late.begun.is_some() && !late.is_recovered());
        let never = watched(0.0);
        assert_eq!((never.begun, never.until_recovered()), (None, None));
        assert!(watch(1, GIB, || anyhow::bail!("gone"), || Ok(())).is_err());
    }

    #[test]
    fn the_end_is_extrapolated_from_where_memory_was_first_recovered() {
        // A scan of 60 s that recovers nothing, then half of 95 % within 40 s.
        let half = sample(0.475, 100.0, 1.0, Some((60.0, 0.2)));
        let (bytes, seconds, cpu) = half.until_recovered().unwrap();
        let near = |one: f64, other: f64| (one - other).abs() < 1e-6 * other;
        assert!(near(bytes, 0.95 * GIB as f64) && near(seconds, 140.0) && near(cpu, 1.8), "{seconds} {cpu}");
        let slow = row("ksm", &[half]);
        assert!(slow.extrapolated && near(slow.cpu_seconds_per_gib.unwrap().median, 1.8 / 0.95));
        let none = row("ksm", &[half, sample(0.0, 100.0, 1.0, None)]);
        assert!(!none.extrapolated && none.seconds.is_none() && none.recovered_bytes.is_some());
        let soon = row(HARD, &[sample(1.0, 4.0, 0.5, Some((1.0, 0.1)))]);
        assert!(!soon.extrapolated);
        assert_eq!((soon.gib_per_second.unwrap().median, soon.cpu_seconds.unwrap().median), (0.25, 0.5));
    }

    #[test]
    fn less_processor_time_for_a_gib_holds_and_as_much_does_not() {
        let gate = |ours: &[RecoverySample], hard: &[RecoverySample]| {
            let rows = vec![row(OURS, ours), row(HARD, hard)];
            Merging { rows, absent: None }.gates().unwrap()
        };
        let ended = |share, cpu| [sample(share, 1.0, cpu, None)];
        let gate_holds = |ours: &[RecoverySample], hard: &[RecoverySample]| gate(ours, hard).holds;
        assert!(gate_holds(&ended(1.0, 0.4), &ended(1.0, 0.5)));
        assert!(!gate_holds(&ended(1.0, 0.5), &ended(1.0, 0.5)));
        // Per GiB: ours freed less in the same time.
        assert!(!gate_holds(&ended(0.95, 0.5), &ended(1.0, 0.5)));
        assert!(!gate_holds(&ended(0.5, 0.1), &ended(1.0, 0.5)), "ours did not recover it");
        assert!(!gate_holds(&[], &ended(1.0, 0.5)));
        assert!(gate_holds(&ended(1.0, 0.5), &ended(0.0, 0.1)), "KSM recovered nothing");
        assert!(!gate_holds(&ended(1.0, 0.5), &[]), "KSM was not measured");
        let slow = [sample(0.5, 1.0, 0.5, Some((0.0, 0.0)))];
        assert_eq!(gate(&ended(1.0, 0.5), &slow).found, "0.500 CPU s against 1.000 CPU s (extrapolated)");
        let absent = Merging { rows: vec![row(OURS, &ended(1.0, 0.5))], absent: Some("no KSM".into()) };
        assert!(absent.gates().is_none());
    }

    #[test]
    fn ksm_is_a_peer_where_it_is_there_and_idle() {
        let idle = Ksm::default();
        assert_eq!(why_absent(Some(idle), Some(Pid(37)), &[]), None);
        let why = |found, thread| why_absent(found, thread, &[]).unwrap();
        assert!(why(None, Some(Pid(37))).contains("CONFIG_KSM"));
        assert!(why(Some(idle), None).contains("ksmd"));
        let machine = ["qemu-system-x86 (7)".to_string()];
        let found = why_absent(Some(idle), Some(Pid(37)), &machine).unwrap();
        assert_eq!(found, "ksmd would scan other programs as well: qemu-system-x86 (7)");
        let runs = Ksm { runs: true, ..idle };
        assert_eq!(why(Some(runs), Some(Pid(37))), "it is in use: run is 1, pages_shared 0");
        let merged = Ksm { pages_shared: 9, ..idle };
        assert_eq!(why(Some(merged), Some(Pid(37))), "it is in use: run is 0, pages_shared 9");
    }

    #[test]
    fn settings_differ_in_pace_alone() {
        let bare =
            |setting: &KsmSetting| KsmControls { pages_to_scan: None, sleep: None, ..setting.controls };
        assert_eq!(bare(&SETTINGS[0]), bare(&SETTINGS[1]));
        assert!(SETTINGS.iter().any(|setting| setting.name == HARD));
    }
}
