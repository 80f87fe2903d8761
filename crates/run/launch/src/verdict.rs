//! The result of a trial for one build of a service's program (`megapage trial`), and its effect on
//! the next start.
//!
//! A verdict holds for one build of one program in one unit, on one kind of processor. An error in
//! verdicts never makes a start fail: the start is made as if there were none.

mod forbidden;
mod store;

pub use forbidden::Forbidden;
pub use store::{Store, Stored, TRIALS_VARIABLE};

use crate::elf::{build_id, hexadecimal};
use crate::mechanism::Plan;
use crate::request::Mechanism;
use megapage_decide::judge::{Decision, Gain};
use megapage_kernel::process::read_cgroup;
use megapage_kernel::trusted::{open_binary, read_bounded};
use megapage_kernel::{KernelRoot, machine};
use megapage_units::Pid;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::io;
use std::path::{Path, PathBuf};

/// The schema of a verdict's file.
pub const SCHEMA: &str = "megapage.verdict/1";

/// Largest size of a file, in bytes, that is read whole for want of a build-id: a start must not
/// wait long.
const MOST_DIGESTED: u64 = 4 << 20;

/// The build for which a verdict holds.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Build {
    /// The unit; empty for a program that runs in none.
    pub unit: String,
    /// The program's file.
    pub program: String,
    /// Its size.
    pub bytes: u64,
    /// The name that the linker gave to the build; without one, the SHA-256 of the whole file.
    pub build: String,
}

impl Build {
    /// Returns the build of an ELF file that runs in `unit`, or the reason why it cannot be
    /// determined.
    pub fn of(unit: &str, program: &Path) -> Result<Build, String> {
        let wrong = |error: io::Error| format!("{}: {error}", program.display());
        let open = || open_binary(program).map_err(wrong);
        let bytes = open()?.metadata().map_err(wrong)?.len();
        let build = match build_id(open()?) {
            Some(build) => build,
            None if bytes > MOST_DIGESTED => {
                return Err(format!(
                    "{} has no build-id, and is too large to be told by its contents (ld --build-id makes one)",
                    program.display()
                ));
            }
            None => digest([read_bounded(open()?, MOST_DIGESTED).map_err(wrong)?]),
        };
        Ok(Build { unit: unit.into(), program: program.to_string_lossy().into_owned(), bytes, build })
    }

    fn key(&self) -> String {
        digest([&self.unit, &self.program, &self.build, &self.bytes.to_string()])
    }
}

/// A verdict, as its file holds it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Verdict {
    /// [`SCHEMA`].
    pub schema: String,
    /// The build for which it holds.
    pub build: Build,
    /// The decision.
    pub decision: Decision,
    /// The gain with its interval.
    pub gain: Gain,
    /// The least gain that would pay.
    pub least_gain: f64,
    /// The chance that the interval is wrong.
    pub error: f64,
    /// The metric, in words.
    pub metric: String,
    /// Number of blocks on which it rests.
    pub blocks: u64,
    /// The share of the private memory that was made huge and base again.
    pub share: f64,
    /// Time of the decision, in seconds since 1970.
    pub decided: u64,
    /// The kernel's release.
    pub kernel: String,
    /// The processors' model.
    pub processor: String,
}

impl Verdict {
    /// Returns a verdict on this machine. The caller sets the fields from `least_gain` to
    /// `decided`.
    pub fn new(root: &KernelRoot, build: Build, decision: Decision, gain: Gain) -> Verdict {
        let machine = machine(root).ok();
        Verdict {
            schema: SCHEMA.into(),
            build,
            decision,
            gain,
            least_gain: 0.0,
            error: 0.0,
            metric: String::new(),
            blocks: 0,
            share: 0.0,
            decided: 0,
            kernel: machine.as_ref().map(|it| it.kernel.clone()).unwrap_or_default(),
            processor: machine.map(|it| it.processor).unwrap_or_default(),
        }
    }

    /// Reads a verdict from the bytes of its file. The error says what is wrong with it.
    pub fn parse(bytes: &[u8]) -> Result<Verdict, String> {
        let verdict: Verdict =
            serde_json::from_slice(bytes).map_err(|error| format!("it cannot be read: {error}"))?;
        match verdict.schema == SCHEMA {
            true => Ok(verdict),
            false => Err(format!("its schema is not {SCHEMA}")),
        }
    }

    /// Stores it in place of an earlier one of the same build. Returns the file.
    pub fn keep(&self, store: &Store) -> Result<PathBuf, String> {
        let bytes = serde_json::to_vec_pretty(self).map_err(|error| error.to_string())?;
        let key = self.build.key();
        store.write(&key, &bytes).map_err(|error| format!("{}: {error}", store.path().display()))?;
        Ok(store.file(&key))
    }

    /// Returns the verdict of a build; `None` if there is none from this machine's processor model.
    /// The error says what is wrong with the file.
    pub fn find(root: &KernelRoot, store: &Store, build: &Build) -> Result<Option<Verdict>, String> {
        let key = build.key();
        let wrong = |why: String| format!("{}: {why}", store.file(&key).display());
        let read = store.read(&key).map_err(|error| wrong(error.to_string()))?;
        let Some(verdict) = read.map(|bytes| Verdict::parse(&bytes)).transpose().map_err(wrong)? else {
            return Ok(None);
        };
        if verdict.build != *build {
            return Err(wrong("it is another program's".into()));
        }
        let processor = processor(root);
        Ok(Some(verdict).filter(|it| it.processor == processor))
    }

    /// Returns true if the program's file is still the build that was on trial.
    pub fn is_current(&self) -> bool {
        Build::of(&self.build.unit, Path::new(&self.build.program)).is_ok_and(|build| build == self.build)
    }

    /// Returns true if it forbids to promote the program's memory.
    pub fn forbids(&self) -> bool {
        matches!(self.decision, Decision::NoGain | Decision::Hurts)
    }

    /// Returns the unit, or the program if it runs in none.
    pub fn service(&self) -> &str {
        if self.build.unit.is_empty() { &self.build.program } else { &self.build.unit }
    }

    /// Returns true if `name` means it: its unit with or without `.service`, its program's path or
    /// file name.
    pub fn is_meant_by(&self, name: &str) -> bool {
        let path = Path::new(&self.build.program);
        let unit = &self.build.unit;
        // A program outside any unit has an empty unit name.
        !name.is_empty()
            && (unit == name
                || unit.strip_suffix(SERVICE) == Some(name)
                || path == Path::new(name)
                || path.file_name().is_some_and(|file| file == name))
    }

    /// Describes it in one sentence.
    pub fn in_words(&self) -> String {
        let found = match self.decision {
            Decision::Gains => "found a gain",
            Decision::NoGain => "found no gain",
            Decision::Hurts => "found that it hurts",
            Decision::Undecided => "could not decide",
        };
        format!("a trial on {} {found}: {} in {}", date(self.decided), self.gain.in_words(), self.metric)
    }
}

/// Returns the SHA-256 of these pieces and their lengths, in hexadecimal digits.
fn digest(pieces: impl IntoIterator<Item = impl AsRef<[u8]>>) -> String {
    let mut sha = Sha256::new();
    for piece in pieces {
        let piece = piece.as_ref();
        sha.update((piece.len() as u64).to_le_bytes());
        sha.update(piece);
    }
    hexadecimal(&sha.finalize())
}

/// Returns seconds since 1970 as a date and a time, UTC.
pub fn date(seconds: u64) -> String {
    // Days since 1 March of the year 0, in eras of 400 years (Hinnant, "chrono-compatible low-level
    // date algorithms").
    let days = (seconds / 86_400).min(1 << 32) + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year + year / 4 - year / 100);
    let march = (5 * of_year + 2) / 153;
    let day = of_year - (153 * march + 2) / 5 + 1;
    let month = if march < 10 { march + 3 } else { march - 9 };
    let year = year + era * 400 + u64::from(month <= 2);
    let minutes = seconds / 60 % 1440;
    format!("{year:04}-{month:02}-{day:02} {:02}:{:02} UTC", minutes / 60, minutes % 60)
}

const SERVICE: &str = ".service";

/// Returns the processors' model; empty if it is not known.
fn processor(root: &KernelRoot) -> String {
    machine(root).map(|it| it.processor).unwrap_or_default()
}

/// Returns the service unit of a process, from its control group; empty if it runs in none.
pub fn unit_of(root: &KernelRoot, pid: Pid) -> String {
    let group = read_cgroup(root, pid).unwrap_or_default();
    let last = group.rsplit('/').next().unwrap_or_default();
    if last.ends_with(SERVICE) { last.to_string() } else { String::new() }
}

/// Returns the verdicts of the calling user, or the reason why there are none.
pub fn store() -> Result<Store, String> {
    store::directory().map(Store::at)
}

/// Returns all verdicts of a store, the latest first.
pub fn all(store: &Store) -> std::io::Result<Vec<Stored<Verdict>>> {
    let mut all = store.all(Verdict::parse)?;
    let decided = |it: &Stored<Verdict>| it.content.as_ref().map_or(0, |verdict| verdict.decided);
    all.sort_by(|a, b| (decided(b), &a.key).cmp(&(decided(a), &b.key)));
    Ok(all)
}

/// Returns the latest verdict of a unit whose program is still the build that was on trial.
pub fn of_unit(unit: &str) -> Option<Verdict> {
    let all = all(&store().ok()?).ok()?;
    let verdicts = all.into_iter().filter_map(|it| it.content.ok());
    verdicts.filter(|it| it.build.unit == unit).find(Verdict::is_current)
}

/// Returns the verdict of a program that is about to be started, or runs, in the unit of `pid`.
pub(crate) fn of_program(root: &KernelRoot, pid: Pid, program: &Path) -> Option<Verdict> {
    let store = store().ok()?;
    // Without any trial so far, no file has to be read.
    if store.keys().is_ok_and(|keys| keys.is_empty()) {
        return None;
    }
    let build = Build::of(&unit_of(root, pid), program).ok()?;
    Verdict::find(root, &store, &build).ok().flatten()
}

/// Applies a verdict to a plan: promotion that did not pay is not done again from outside, unless
/// the user names the mechanism.
pub(crate) fn replay(plan: &mut Plan, asked: Option<Mechanism>, verdict: &Verdict) {
    let words = verdict.in_words();
    let outside = plan.considered.iter_mut().find(|it| it.mechanism == Mechanism::Outside);
    let Some(outside) = outside.filter(|it| it.used) else {
        plan.notes.push(format!("{words}; nothing is promoted from outside here"));
        return;
    };
    if !verdict.forbids() {
        outside.reason = format!("{}; {words}", outside.reason);
    } else if asked == Some(Mechanism::Outside) {
        plan.notes.push(format!("{words}; --mechanism outside overrides it"));
    } else {
        outside.used = false;
        outside.reason = format!("{words} (--mechanism outside, or megapage trial --forget, overrides it)");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::mechanism::Considered;
    use crate::request::Heap;

    pub(super) fn verdict(decision: Decision) -> Verdict {
        let root = KernelRoot::live();
        let build =
            Build { unit: "a.service".into(), program: "/usr/bin/a".into(), bytes: 7, build: "b1".into() };
        let gain = Gain { low: Some(-0.02), likely: Some(-0.01), high: Some(-0.005) };
        Verdict {
            least_gain: 0.01,
            error: 0.05,
            metric: "requests per CPU second".into(),
            blocks: 12,
            share: 0.9,
            decided: 1_795_472_880,
            ..Verdict::new(&root, build, decision, gain)
        }
    }

    #[test]
    fn pieces_are_distinguished_by_where_they_end() {
        let all = [vec!["ab", "c"], vec!["a", "bc"], vec!["abc"], vec!["abc", ""], vec!["c", "ab"]];
        let mut digests: Vec<String> = all.iter().map(digest).collect();
        digests.sort();
        digests.dedup();
        assert_eq!(digests.len(), all.len());
        // FIPS 180-4's example: other tools give the same for these bytes.
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hexadecimal(&Sha256::digest("abc")), known);
    }

    #[test]
    fn a_large_file_without_a_build_id_has_no_build() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "x").unwrap();
        assert_eq!(Build::of("", &path).unwrap().build, digest(["x"]));
        std::fs::File::options().write(true).open(&path).unwrap().set_len(MOST_DIGESTED + 1).unwrap();
        assert!(Build::of("", &path).unwrap_err().contains("has no build-id"));
    }

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, expected) in [
            (0, "1970-01-01 00:00 UTC"),
            (951_827_696, "2000-02-29 12:34 UTC"),
            (4_107_542_399, "2100-02-28 23:59 UTC"),
            (4_107_542_400, "2100-03-01 00:00 UTC"),
            (1_795_472_880, "2026-11-23 22:28 UTC"),
        ] {
            assert_eq!(date(seconds), expected);
        }
        // Any number in a file gives a date without overflow.
        assert!(date(u64::MAX).ends_with("UTC"));
    }

    #[test]
    fn a_verdict_is_found_by_its_build_alone() {
        let (base, root) = (tempfile::tempdir().unwrap(), KernelRoot::live());
        let store = Store::at(base.path().join("trials"));
        let kept = verdict(Decision::Hurts);
        assert_eq!(Verdict::find(&root, &store, &kept.build).unwrap(), None);
        let file = kept.keep(&store).unwrap();
        assert_eq!(Verdict::find(&root, &store, &kept.build).unwrap(), Some(kept.clone()));
        for other in [
            Build { unit: String::new(), ..kept.build.clone() },
            Build { program: "/usr/bin/b".into(), ..kept.build.clone() },
            Build { bytes: 8, ..kept.build.clone() },
            Build { build: "b2".into(), ..kept.build.clone() },
        ] {
            assert_eq!(Verdict::find(&root, &store, &other).unwrap(), None, "{other:?}");
        }
        assert!(!kept.is_current(), "there is no such program");
        let elsewhere = Verdict { processor: "another".into(), ..kept.clone() };
        elsewhere.keep(&store).unwrap();
        assert_eq!(Verdict::find(&root, &store, &kept.build).unwrap(), None, "found on another processor");
        std::fs::write(&file, "{").unwrap();
        assert!(Verdict::find(&root, &store, &kept.build).unwrap_err().contains("cannot be read"));
        let all = all(&store).unwrap();
        assert!(all.len() == 1 && all[0].content.is_err());
    }

    #[test]
    fn a_verdict_is_named_as_users_name_services() {
        let verdict = verdict(Decision::NoGain);
        for name in ["a.service", "a", "/usr/bin/a"] {
            assert!(verdict.is_meant_by(name), "{name}");
        }
        assert!(!verdict.is_meant_by("b") && !verdict.is_meant_by(""));
        let of_no_unit = Build { unit: String::new(), ..verdict.build.clone() };
        assert!(!Verdict { build: of_no_unit, ..verdict.clone() }.is_meant_by(""));
        let words = verdict.in_words();
        assert_eq!(
            words,
            "a trial on 2026-11-23 22:28 UTC found no gain: -1.0 % (-2.0 to -0.5 %) in requests per CPU second"
        );
    }

    #[test]
    fn what_does_not_pay_is_not_done_again_unless_asked_for() {
        let plan = |used| {
            let reason = "static".to_string();
            Plan::of(vec![Considered { mechanism: Mechanism::Outside, used, reason }], Heap::Thp)
        };
        let replayed = |used, asked, decision| {
            let mut plan = plan(used);
            replay(&mut plan, asked, &verdict(decision));
            plan
        };
        for decision in [Decision::Hurts, Decision::NoGain] {
            let plan = replayed(true, None, decision);
            assert!(!plan.uses(Mechanism::Outside));
            assert!(plan.considered[0].reason.contains("a trial on 2026"), "{:?}", plan.considered);
            assert!(replayed(true, Some(Mechanism::Outside), decision).uses(Mechanism::Outside));
        }
        for decision in [Decision::Gains, Decision::Undecided] {
            let plan = replayed(true, None, decision);
            assert!(
                plan.uses(Mechanism::Outside) && plan.considered[0].reason.starts_with("static; a trial")
            );
        }
        assert_eq!(replayed(false, None, Decision::Hurts).notes.len(), 1);
    }

    #[test]
    fn the_unit_is_the_last_part_of_the_control_group() {
        let tree = tempfile::tempdir().unwrap();
        let root = KernelRoot::captured(tree.path());
        let of = |text: &str| {
            std::fs::create_dir_all(tree.path().join("proc/9")).unwrap();
            std::fs::write(tree.path().join("proc/9/cgroup"), text).unwrap();
            unit_of(&root, Pid(9))
        };
        assert_eq!(of("0::/system.slice/redis-server.service\n"), "redis-server.service");
        assert_eq!(of("0::/user.slice/user@0.service/app.scope\n"), "");
        assert_eq!(of("0::/\n"), "");
        assert_eq!(unit_of(&root, Pid(10)), "");
    }
}
