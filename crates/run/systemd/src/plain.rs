//! Services that start as without megapage, although they are enabled: megapage is off, or they
//! have failed under it.
//!
//! systemd reads a file of variables (EnvironmentFile=) before each start. The file exists only for
//! a service that is to start plainly; its variables undo those of the drop-in. After each run,
//! systemd calls `megapage enable --ended`, as the drop-in says. This counts failures soon after a
//! start; after two in a row it writes the file.

use crate::drop_in::DROP_IN;
use crate::enable::PLACE;
use crate::error::SystemdError;
use crate::files::Files;
use crate::manager::Manager;
use crate::name::UnitName;
use crate::service::Service;
use megapage_kernel::off::{OFF, OFF_VARIABLE};
use megapage_kernel::runtime_directory::runtime_directory;
use megapage_kernel::tree::Tree;
use megapage_kernel::{KernelRoot, why_off};
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A failure counts if the run was shorter: it may be due to megapage.
const SOON: Duration = Duration::from_secs(60);
/// Failures in a row, each soon after a start, that make the service start plainly.
const MOST_FAILURES: u32 = 2;
/// systemd's results of a run (`$SERVICE_RESULT`) that do not count as failures.
const NO_FAILURES: [&str; 3] = ["success", "exec-condition", "start-limit-hit"];
/// Begins the first line of the file of variables, which gives the reason for the file.
const WHY: &str = "# ";
const BECAUSE_OFF: &str = "megapage is off";
/// The longest file that is read, in bytes.
const LONGEST: u64 = 1 << 16;

/// Returns the lines of a drop-in that make plain starts possible. `megapage` is the command.
/// `only_by_variables`: the variables reach a program that does not check the switch.
pub(crate) fn lines(megapage: &str, only_by_variables: bool) -> Vec<String> {
    let file = runtime_directory(&KernelRoot::live()).join("plain-%n");
    let mut lines = vec![
        format!("EnvironmentFile=-{}", file.display()),
        format!("ExecStopPost=-+{megapage} enable --ended %n"),
    ];
    if only_by_variables {
        // The program's runtime does not check the switch.
        lines.push(format!("ExecStartPre=-+{megapage} enable --starting %n"));
    }
    lines
}

/// The files about one service: `plain` (its variables) and `failed` (its failures in a row).
struct Kept<'a> {
    kernel: &'a KernelRoot,
    root: &'a Path,
    unit: &'a UnitName,
}

impl Kept<'_> {
    fn path(&self, what: &str) -> PathBuf {
        runtime_directory(self.kernel).join(format!("{what}-{}", self.unit))
    }

    fn done<T>(
        &self,
        what: &str,
        work: impl FnOnce(&Tree, &Path) -> io::Result<T>,
    ) -> Result<T, SystemdError> {
        let path = self.path(what);
        Tree::open(self.root)
            .and_then(|tree| work(&tree, &path))
            .map_err(|source| SystemdError::Io { path, source })
    }

    fn read(&self, what: &str) -> Result<Option<String>, SystemdError> {
        self.done(what, |tree, path| tree.read(path, LONGEST))
    }

    fn remove(&self, what: &str) -> Result<(), SystemdError> {
        self.done(what, |tree, path| match tree.remove(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        })
    }

    fn write(&self, what: &str, text: &str) -> Result<(), SystemdError> {
        self.done(what, |tree, path| tree.replace(path, text))
    }

    /// Makes the service start plainly from now on; `why` is the reason.
    fn write_plain(&self, why: &str) -> Result<(), SystemdError> {
        let mut text = format!("{WHY}{why}\n{OFF_VARIABLE}={}\n", OFF.to_string_lossy());
        for (name, value) in former(self.root, self.unit)? {
            let value = value.replace('\\', "\\\\").replace('"', "\\\"");
            text.push_str(&format!("{name}=\"{value}\"\n"));
        }
        self.write("plain", &text)
    }
}

/// Returns the variables that the drop-in of a service sets, with their values without it.
fn former(root: &Path, unit: &UnitName) -> Result<Vec<(String, String)>, SystemdError> {
    let files = Files::new(root);
    let template = unit.template();
    let places = std::iter::once(unit).chain(&template);
    let drop_in = places
        .map(|name| root.join(PLACE).join(format!("{name}.d")).join(DROP_IN))
        .find(|path| path.is_file());
    let Some(path) = drop_in else { return Ok(Vec::new()) };
    let with = Service::load(&files, unit, None)?.map(|service| service.environment()).unwrap_or_default();
    let without = Service::load(&files, unit, Some((&path, None)))?;
    let without = without.map(|service| service.environment()).unwrap_or_default();
    let ours = with.into_iter().filter(|(name, value)| without.get(name) != Some(value));
    let former = |name: String| {
        let value = without.get(&name).cloned().unwrap_or_default();
        (name, value)
    };
    Ok(ours.map(|(name, _)| former(name)).collect())
}

/// Records the end of a service's run. `result` is systemd's word for it, and `lived` its length;
/// an unknown length counts as short. Returns true if this end makes the next start plain.
pub fn ended(
    kernel: &KernelRoot,
    root: &Path,
    unit: &UnitName,
    result: &str,
    lived: Option<Duration>,
) -> Result<bool, SystemdError> {
    let kept = Kept { kernel, root, unit };
    if kept.read("plain")?.is_some() {
        return Ok(false);
    }
    let failed = !NO_FAILURES.contains(&result) && lived.is_none_or(|lived| lived < SOON);
    if !failed {
        kept.remove("failed")?;
        return Ok(false);
    }
    let before = kept.read("failed")?.and_then(|text| text.trim().parse().ok()).unwrap_or(0u32);
    if before.saturating_add(1) < MOST_FAILURES {
        kept.write("failed", &format!("{}\n", before + 1))?;
        return Ok(false);
    }
    kept.remove("failed")?;
    kept.write_plain(&format!("it failed twice within a minute of its start ({result})"))?;
    Ok(true)
}

/// Prepares a start of a service whose variables only its runtime reads: plain while megapage is
/// off.
pub fn starting(kernel: &KernelRoot, root: &Path, unit: &UnitName) -> Result<(), SystemdError> {
    let kept = Kept { kernel, root, unit };
    let is_for_off = kept.read("plain")?.is_some_and(|text| text.starts_with(&format!("{WHY}{BECAUSE_OFF}")));
    match why_off(kernel) {
        Some(why) => kept.write_plain(&format!("{BECAUSE_OFF}: {why}")),
        None if is_for_off => kept.remove("plain"),
        None => Ok(()),
    }
}

/// Returns the reason why a service starts plainly; `None` if it does not, or if that cannot be
/// read.
pub fn why_plain(kernel: &KernelRoot, root: &Path, unit: &UnitName) -> Option<String> {
    let text = Kept { kernel, root, unit }.read("plain").ok()??;
    Some(text.lines().next()?.trim_start_matches(WHY).to_string())
}

/// Removes the records about a service, and about all instances of a template.
pub(crate) fn forget(kernel: &KernelRoot, root: &Path, unit: &UnitName) -> Result<(), SystemdError> {
    let mut units = vec![unit.clone()];
    if let (Some(""), Some(manager)) = (unit.instance(), Manager::of(root)) {
        units.extend(manager.instances(unit)?);
    }
    for unit in &units {
        let kept = Kept { kernel, root, unit };
        kept.remove("failed")?;
        kept.remove("plain")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const UNIT: &str = "[Service]\nExecStart=/bin/db\nEnvironment=JAVA_OPTS=-Xmx1g LANG=C\n";
    const OURS: &str = "[Service]\nEnvironment=LD_PRELOAD=/x.so\nEnvironment=\"JAVA_OPTS=-Xmx1g -XX:+Y\"\n";

    fn tree() -> (tempfile::TempDir, KernelRoot, UnitName) {
        let tree = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = tree.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("usr/lib/systemd/system/db.service", UNIT);
        put("etc/systemd/system/db.service.d/50-megapage.conf", OURS);
        let kernel = KernelRoot::captured(tree.path());
        (tree, kernel, UnitName::parse("db").unwrap())
    }

    #[test]
    fn two_failures_soon_after_the_start_are_enough() {
        let (tree, kernel, unit) = tree();
        let seconds = |seconds| Some(Duration::from_secs(seconds));
        let run = |result, lived| ended(&kernel, tree.path(), &unit, result, lived).unwrap();
        // Between two failures the service did well or failed late: the count starts again.
        for (result, lived) in
            [("success", seconds(1)), ("exit-code", seconds(61)), ("start-limit-hit", None)]
        {
            assert!(!run("exit-code", seconds(3)));
            assert!(!run(result, lived), "{result}");
        }
        assert!(!run("signal", seconds(59)));
        assert_eq!(why_plain(&kernel, tree.path(), &unit), None);
        assert!(run("exit-code", None), "it did not even start");
        let why = why_plain(&kernel, tree.path(), &unit).unwrap();
        assert_eq!(why, "it failed twice within a minute of its start (exit-code)");
        let text = fs::read_to_string(tree.path().join("run/megapage/plain-db.service")).unwrap();
        let variables = "MEGAPAGE=off\nJAVA_OPTS=\"-Xmx1g\"\nLD_PRELOAD=\"\"\n";
        assert_eq!(text.split_once('\n').unwrap().1, variables);
        // It stays plain after any further result, until it is enabled again.
        assert!(!run("success", seconds(100)) && why_plain(&kernel, tree.path(), &unit).is_some());
        forget(&kernel, tree.path(), &unit).unwrap();
        assert_eq!(why_plain(&kernel, tree.path(), &unit), None);
    }

    #[test]
    fn the_switch_reaches_runtimes_that_know_nothing_of_it() {
        let (tree, kernel, unit) = tree();
        let off = tree.path().join("etc/megapage/off");
        let start = || starting(&kernel, tree.path(), &unit).unwrap();
        start();
        assert_eq!(why_plain(&kernel, tree.path(), &unit), None);
        fs::create_dir_all(off.parent().unwrap()).unwrap();
        fs::write(&off, "").unwrap();
        start();
        assert_eq!(
            why_plain(&kernel, tree.path(), &unit).unwrap(),
            "megapage is off: /etc/megapage/off exists"
        );
        fs::remove_file(&off).unwrap();
        start();
        assert_eq!(why_plain(&kernel, tree.path(), &unit), None);
        // A service that has failed stays plain.
        for _ in 0..2 {
            ended(&kernel, tree.path(), &unit, "signal", None).unwrap();
        }
        start();
        assert!(why_plain(&kernel, tree.path(), &unit).is_some());
    }
}
