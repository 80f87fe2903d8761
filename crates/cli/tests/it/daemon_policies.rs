//! Each published policy under `megapage daemon`. The memory of the processes is laid out so that
//! the order of promotions shows which policy it is. All policies run at once, at khugepaged's pace
//! of eight regions in ten seconds, so that samples come between rounds.

use crate::user;

use megapage_daemon::client;
use megapage_kernel::KernelRoot;
use megapage_kernel::pagemap::Pagemap;
use megapage_kernel::smaps::read_smaps;
use megapage_kernel::spawn::{send_signal, signal};
use megapage_testing::{MachineLock, require_root, skip};
use megapage_units::{Bytes, HUGE_2M, Pid, VirtRange};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Duration;
use user::{MEGAPAGE, Said, megapage, until, until_within};

/// Longest wait. Six daemons try trackers at once, which takes minutes on a machine with other
/// work.
const PATIENCE: Duration = Duration::from_secs(1800);
/// Passes to wait for a promotion, a second or more each. A region that is not promoted in the time
/// of six rounds never is.
const PASSES: u64 = 60;

/// The process of `tests/programs/regions.c`. It ends with its standard input, at the latest when
/// this is dropped.
struct Target {
    child: Child,
    ask: ChildStdin,
    told: BufReader<ChildStdout>,
    base: u64,
    regions: Vec<u16>,
}

impl Target {
    /// Starts the program; `layout` is its command line. A program that rests most of the time has
    /// priority, so that it makes its accesses also on a busy machine.
    fn start(program: &Path, layout: &str) -> Target {
        let mut command = Command::new("nice");
        let nice = if layout.starts_with("rest") { "-10" } else { "0" };
        command.args(["-n", nice]).arg(program).args(layout.split(' '));
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let (ask, mut told) = (child.stdin.take().unwrap(), BufReader::new(child.stdout.take().unwrap()));
        let mut base = String::new();
        told.read_line(&mut base).unwrap();
        let base = u64::from_str_radix(base.trim(), 16).unwrap_or_else(|_| panic!("{layout}: it has ended"));
        Target { child, ask, told, base, regions: regions(layout) }
    }

    fn pid(&self) -> Pid {
        Pid(self.child.id().cast_signed())
    }

    /// Returns its anonymous memory on huge pages.
    fn huge(&self) -> Bytes {
        let mappings = read_smaps(&KernelRoot::live(), self.pid()).unwrap_or_default();
        mappings.iter().map(|mapping| mapping.anon_huge).sum()
    }

    /// Makes it touch the pages of a region that are not present yet.
    fn fill(&mut self, region: usize) {
        self.order(&region.to_string(), "filled");
        self.regions[region] = 512;
    }

    /// Makes the kernel split the huge page of a region. All its pages are present again
    /// afterwards.
    fn split(&mut self, region: usize) {
        self.order(&format!("-{region}"), "split");
    }

    fn order(&mut self, order: &str, answer: &str) {
        self.ask.write_all(format!("{order}\n").as_bytes()).unwrap();
        let mut line = String::new();
        self.told.read_line(&mut line).unwrap();
        assert_eq!(line.trim(), answer);
    }
}

impl Drop for Target {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Returns the present pages of each region of a layout; 0 for a region that is huge from the
/// start.
fn regions(layout: &str) -> Vec<u16> {
    let each = layout.split(' ').skip(1).flat_map(|word| {
        let (count, rest) = word.split_once('x').unwrap();
        let present = rest.split('h').next().unwrap().parse().unwrap_or(0);
        std::iter::repeat_n(present, count.parse().unwrap())
    });
    each.collect()
}

/// A requested promotion: the index of the target, the index of the region, and the reason.
type Promotion = (usize, usize, String);

/// A daemon over some targets.
struct Live {
    targets: Vec<Target>,
    daemon: Child,
    directory: tempfile::TempDir,
}

impl Live {
    fn start(program: &Path, policy: &str, layouts: &[&str]) -> Live {
        let mut targets = Vec::new();
        for layout in layouts {
            targets.push(Target::start(program, layout));
            // The kernel counts starts in hundredths of a second; the order of starts must be
            // known.
            std::thread::sleep(Duration::from_millis(25));
        }
        let directory = tempfile::tempdir().unwrap();
        let pids: Vec<String> = targets.iter().map(|target| target.pid().to_string()).collect();
        // No bound that a busy machine could reach: only the order counts.
        let text = format!(
            "policy = '{policy}'\nlock_file = '{at}/lock'\nstate_file = ''\n\
             [processes]\ninclude = ['^no-such-name$']\npids = [{pids}]\n\
             [observe]\nbudget_percent = 100\nown_percent = 100\nown_percent_busy = 100\n\
             [act]\ntime = '10s'\nlatency_guard = '10s'\npause = '1ms'\npause_most = '1ms'\n\
             [pace]\ninterval = '10s'\n[metrics]\nsocket = '{at}/socket'\ndecisions = 1000\n",
            at = directory.path().display(),
            pids = pids.join(", "),
        );
        let config = directory.path().join("daemon.toml");
        std::fs::write(&config, text).unwrap();
        let log = std::fs::File::create(directory.path().join("log")).unwrap();
        let mut command = Command::new(MEGAPAGE);
        command.args(["daemon", "--config", config.to_str().unwrap()]).stdout(Stdio::null()).stderr(log);
        Live { targets, daemon: command.spawn().unwrap(), directory }
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("socket")
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.directory.path().join("log")).unwrap()
    }

    /// Returns all promotions that were requested so far, in order. A region that was tried again
    /// appears once, at its first try.
    fn promotions(&mut self) -> Vec<Promotion> {
        if let Some(status) = self.daemon.try_wait().unwrap() {
            panic!("the daemon has ended, {status}: {}", self.log());
        }
        let Ok(told) = client::decisions(&self.socket(), 0, 1000) else { return Vec::new() };
        assert_eq!(told.lost, 0);
        let mut found: Vec<Promotion> = Vec::new();
        for decision in told.decisions.iter().filter(|decision| decision.action == "promote") {
            let address = u64::from_str_radix(decision.region.as_ref().unwrap(), 16).unwrap();
            let whose = |target: &Target| decision.pid == Some(target.pid().0);
            let target = self.targets.iter().position(whose).unwrap();
            let region = ((address - self.targets[target].base) / HUGE_2M as u64) as usize;
            if !found.iter().any(|(one, other, _)| (*one, *other) == (target, region)) {
                found.push((target, region, decision.reason.clone()));
            }
        }
        found
    }

    /// Returns all promotions, once there are at least `count`, or [`PASSES`] more passes were
    /// made.
    fn wait(&mut self, count: usize) -> Vec<Promotion> {
        let mut begin = None;
        until_within(PATIENCE, "passes", || {
            let found = self.promotions();
            let passes = client::status(&self.socket()).ok()?.passes;
            let made = passes - *begin.get_or_insert(passes);
            (found.len() >= count || made >= PASSES).then_some(found)
        })
    }

    /// Returns the first `count` promotions. Fails if a promotion has another reason than these.
    fn first(&mut self, count: usize, reasons: &[&str]) -> Result<Vec<(usize, usize)>, String> {
        let found = self.wait(count);
        if found.len() < count || found.iter().any(|(_, _, reason)| !reasons.contains(&reason.as_str())) {
            return Err(format!("{found:?}, and not {count} of {reasons:?}"));
        }
        Ok(found.into_iter().take(count).map(|(target, region, _)| (target, region)).collect())
    }

    /// Returns the metrics whose lines begin with `begin`: the rest of the line, and the value.
    fn metrics(&self, begin: &str) -> Vec<(String, f64)> {
        let text = client::get(&self.socket(), "/metrics").unwrap();
        let rest = text.lines().filter_map(|line| line.strip_prefix(begin)?.rsplit_once(' '));
        rest.map(|(labels, value)| (labels.to_string(), value.parse().unwrap())).collect()
    }

    /// Stops it by SIGTERM, and checks that it ends cleanly.
    fn stop(&mut self) {
        send_signal(Pid(self.daemon.id().cast_signed()), signal::SIGTERM).unwrap();
        let status = until("end of the daemon", || self.daemon.try_wait().unwrap());
        assert!(status.success(), "{status}: {}", self.log());
    }
}

impl Drop for Live {
    fn drop(&mut self) {
        let _ = self.daemon.kill();
        let _ = self.daemon.wait();
    }
}

/// A policy, its targets, and a check that only this policy passes.
struct Case {
    policy: &'static str,
    layouts: &'static [&'static str],
    shows: fn(&mut Live) -> Result<(), String>,
}

const CASES: &[Case] = &[
    // The older process first, each from low to high addresses. One present page is enough; heat
    // does not count.
    Case {
        policy: "linux",
        layouts: &["rest 2x1 2x256 1x512", "rest 2x512 2x512h512"],
        shows: |live| {
            let first = live.first(8, &["address-order"])?;
            same(&first, &[(0, 0), (0, 1), (0, 2), (0, 3), (0, 4), (1, 0), (1, 1), (1, 2)])
        },
    },
    // Only regions that are populated to the last page.
    Case {
        policy: "freebsd",
        layouts: &["rest 1x511 2x512 1x1 1x511h511 1x512"],
        shows: |live| {
            let first = live.first(3, &["fully-populated"])?;
            same(&first, &[(0, 1), (0, 2), (0, 5)])?;
            live.targets[0].fill(0);
            let then = live.first(4, &["fully-populated"])?;
            same(&then, &[(0, 1), (0, 2), (0, 5), (0, 0)])?;
            counters_agree(live, 4)
        },
    },
    // Regions with at least 90 % present, 461 pages. The process with fewer huge pages for its
    // memory comes first, until both have as many.
    Case {
        policy: "ingens-code",
        layouts: &["rest 4xH 4x512 1x461 1x460", "rest 1x460 4x512 1x461 2x100h100"],
        shows: |live| {
            let first = live.first(8, &["utilised"])?;
            same(&first[..5], &[(1, 1), (1, 2), (1, 3), (0, 4), (1, 4)])?;
            all_present(live, &first, 461)
        },
    },
    // As in the paper, one page is enough while memory is not fragmented. Fairness counts only huge
    // pages.
    Case {
        policy: "ingens",
        layouts: &["rest 4xH 8x512", "rest 8x512"],
        shows: |live| {
            let first = live.first(8, &["utilised", "unfragmented"])?;
            same(&first[..4], &[(1, 0), (1, 1), (1, 2), (1, 3)])?;
            let younger = first.iter().filter(|(target, _)| *target == 1).count();
            // From four huge pages each on, they alternate.
            if younger == 6 { Ok(()) } else { Err(format!("{first:?}: {younger} of the younger's")) }
        },
    },
    // The highest coverage of all processes first, at any address.
    Case {
        policy: "hawkeye-g",
        layouts: &["rest 4x512 4x512h128 4x512h512", "rest 4x512h256"],
        shows: |live| {
            let mut first = live.first(8, &["coverage"])?;
            // Within a bucket, the order is that of the samples.
            first[..4].sort_unstable();
            first[4..].sort_unstable();
            same(&first, &[(0, 8), (0, 9), (0, 10), (0, 11), (1, 0), (1, 1), (1, 2), (1, 3)])
        },
    },
    // At equal coverage, the process with the higher cost of address translation, and not the one
    // without a cost.
    Case {
        policy: "hawkeye-pmu",
        layouts: &["work 3x512h512", "walk 32x512h512"],
        shows: |live| {
            let promoted = costly(live)?;
            let sources = live.metrics("megapage_translation_info{source=");
            let told = live.log().contains("no performance counters here: it goes by estimates");
            let expected = if told { "\"estimated\"}" } else { "\"measured\"}" };
            if sources != [(expected.to_string(), 1.0)] {
                return Err(format!("{sources:?}: {}", live.log()));
            }
            let is_ours = |(target, _, reason): &Promotion| *target == 1 && reason == "translation-cost";
            if promoted.iter().all(is_ours) { Ok(()) } else { Err(format!("{promoted:?}")) }
        },
    },
];

fn same(found: &[(usize, usize)], expected: &[(usize, usize)]) -> Result<(), String> {
    if found == expected { Ok(()) } else { Err(format!("{found:?}, and not {expected:?}")) }
}

fn all_present(live: &Live, promoted: &[(usize, usize)], least: u16) -> Result<(), String> {
    let present = |(target, region): &(usize, usize)| live.targets[*target].regions[*region];
    match promoted.iter().find(|one| present(one) < least) {
        None => Ok(()),
        Some(one) => Err(format!("{one:?} has {} pages", present(one))),
    }
}

/// Waits for promotions for their cost. The estimate itself does not matter here: if it stays below
/// the 2 % from which on the policy promotes, nothing need be promoted.
fn costly(live: &mut Live) -> Result<Vec<Promotion>, String> {
    let promoted = live.wait(1);
    let walker = format!("megapage_process_translation_ratio{{pid=\"{}\"", live.targets[1].pid());
    match live.metrics(&walker).first() {
        _ if !promoted.is_empty() => {}
        None => {
            return Err(
                "nothing is promoted, and no cost is known of the process that reads at random".into()
            );
        }
        Some((_, share)) if *share >= 0.02 => {
            return Err(format!("nothing is promoted at a cost of {share}"));
        }
        // While others use the processors, timings may show no gain.
        Some((_, share)) => skip(&format!("needs a cost of 2 % for hawkeye-pmu, and not {share}")),
    }
    Ok(promoted)
}

/// Checks that at least `least` promotions were tried, and one was done. Checks that each promotion
/// done counts 2 MiB, that calls are counted, and that the process has huge pages.
fn counters_agree(live: &mut Live, least: usize) -> Result<(), String> {
    let counted = live.metrics("megapage_");
    let huge = live.targets[0].huge().0 as f64;
    let sum = |begin: &str, end: &str| -> f64 {
        let is_it = |labels: &str| labels.starts_with(begin) && labels.ends_with(end);
        counted.iter().filter(|(labels, _)| is_it(labels)).map(|(_, value)| value).sum()
    };
    let promotions = "actions_total{policy=\"freebsd\",action=\"promote\"";
    let (tried, done) = (sum(promotions, "}"), sum(promotions, ",result=\"done\"}"));
    let bytes = sum("promoted_bytes_total", "}");
    let calls = sum("executor_call_seconds_count", "");
    let is_left = |(labels, _): &(String, f64)| labels.starts_with("executor_left_total{action=\"promote\"");
    let has_calls = calls > 0.0 && counted.iter().any(is_left);
    if has_calls && tried >= least as f64 && done > 0.0 && bytes == done * HUGE_2M as f64 && huge > 0.0 {
        return Ok(());
    }
    Err(format!("{huge} bytes are huge, and {counted:?}"))
}

/// Compiles the program. Returns `None`, after a loud skip, if a daemon has nothing to do on this
/// machine.
fn program(directory: &Path) -> Option<PathBuf> {
    if !require_root() {
        return None;
    }
    let program = directory.join("regions");
    let source = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/programs/regions.c");
    let status = Command::new("cc").args(["-O1", "-o", program.to_str().unwrap(), source]).status().unwrap();
    assert!(status.success(), "cc failed");
    // Pages of 2 MiB, or of 64 KiB, would be present as a whole from their first touch on.
    let target = Target::start(&program, "rest 1x1");
    let region = VirtRange::new(target.base, target.base + HUGE_2M as u64).unwrap();
    let seen = Pagemap::open(&KernelRoot::live(), target.pid()).unwrap().regions(region).unwrap();
    if seen[0].present != 1 {
        skip("this system gives huge pages unasked: what is present cannot be laid out");
        return None;
    }
    Some(program)
}

/// A daemon knows which regions the daemon before it acted on, and skips them for `limits.settle`.
/// A daemon without a state file does not know.
#[test]
fn what_was_done_is_known_after_a_restart() {
    // Other tests may change how the kernel gives huge pages.
    let _lock = MachineLock::take();
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = program(directory.path()) else { return };
    let mut target = Target::start(&program, "rest 1x512");
    let at = directory.path().display();
    let config = directory.path().join("daemon.toml");
    let mut promoted = |state: &str| {
        let text = format!(
            "policy = 'freebsd'\nlock_file = '{at}/lock'\nstate_file = '{state}'\n\
             [processes]\ninclude = ['^no-such-name$']\npids = [{}]\n[limits]\nsettle = '1h'\n\
             [act]\ntime = '10s'\nlatency_guard = '10s'\n",
            target.pid()
        );
        std::fs::write(&config, text).unwrap();
        let Said { out, err, .. } =
            megapage(&["daemon", "--config", config.to_str().unwrap(), "--once", "--json"]);
        let pass: serde_json::Value = serde_json::from_str(&out).unwrap_or_else(|_| panic!("{out}{err}"));
        assert_eq!(pass["watched"], 1, "{out}");
        let tried = pass["done"].as_array().unwrap().len();
        // Puts the region back on base pages, all present, promoted or not.
        target.split(0);
        tried
    };
    let state = format!("{at}/state.json");
    assert_eq!(promoted(&state), 1);
    assert_eq!(promoted(&state), 0, "a moment ago, by another daemon");
    assert_eq!(promoted(""), 1);
}

#[test]
fn each_policy_promotes_as_its_own() {
    // Other tests may change how the kernel gives huge pages.
    let _lock = MachineLock::take();
    let directory = tempfile::tempdir().unwrap();
    let Some(program) = program(directory.path()) else { return };
    let start = |case: &Case| Live::start(&program, case.policy, case.layouts);
    let all: Vec<Live> = CASES.iter().map(start).collect();
    let mut failed = Vec::new();
    for (case, mut live) in CASES.iter().zip(all) {
        if let Err(what) = (case.shows)(&mut live) {
            failed.push(format!("{}: {what}\n{}", case.policy, live.log()));
        }
        live.stop();
    }
    assert!(failed.is_empty(), "{}", failed.join("\n"));
}
