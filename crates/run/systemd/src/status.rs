//! Memory of enabled services on huge pages, and the reasons if the share is small.

use crate::drop_in::{DROP_IN, DropIn, Held};
use crate::enable::PLACE;
use crate::error::{SystemdError, refused};
use crate::manager::{Manager, State};
use crate::name::UnitName;
use crate::plain::why_plain;
use megapage_kernel::process::{list_processes, read_cgroup};
use megapage_kernel::smaps::{Mapping, backing, read_smaps};
use megapage_kernel::thp::{ThpEnabled, settings};
use megapage_kernel::tree::Tree;
use megapage_kernel::{KernelError, KernelRoot};
use megapage_snapshot::BackingBytes;
use megapage_units::{Bytes, Pid};
use serde::Serialize;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// Largest number of drop-in directories that are read.
const MOST: usize = 16384;
/// Least memory with a share to report.
const LITTLE: Bytes = Bytes::mib(8);
/// Least share for which no reason is given.
const MUCH: f64 = 0.8;
/// File name of the library, in the names of its mappings.
const LIBRARY: &str = "libmegapage.so";

/// A service that is enabled.
#[derive(Clone, Debug, Serialize)]
pub struct Enabled {
    /// Its unit, or a template that stands for all its instances.
    pub unit: String,
    /// The drop-in.
    #[serde(serialize_with = "megapage_kernel::json_path::escaped")]
    pub path: PathBuf,
    /// The options that it was enabled with.
    pub options: String,
    /// Time at which the drop-in was written, in seconds since 1970.
    pub since: u64,
    /// True if it was changed since megapage wrote it.
    pub changed: bool,
    /// Its services that systemd knows: the unit, or the instances of a template. Empty if systemd
    /// does not run.
    pub services: Vec<Running>,
}

/// A service as it is now.
#[derive(Clone, Debug, Serialize)]
pub struct Running {
    /// Its unit.
    pub unit: String,
    /// ActiveState: `active`, `inactive`, `failed`...
    pub state: String,
    /// Its main process.
    pub main_pid: Option<i32>,
    /// Number of processes in its control group that could be read.
    pub processes: usize,
    /// Number of processes in it that the caller may not read.
    pub unreadable: usize,
    /// Resident memory of all readable processes; shared memory counts once for each process.
    pub memory: BackingBytes,
    /// The share of it on huge pages; `None` if there is little memory.
    pub huge_share: Option<f64>,
    /// The reason for a small share, or the step that is still to be done.
    pub reason: Option<String>,
}

/// Returns all services that are enabled below `root`, by name. With `only`, returns that one, and
/// fails if it is not enabled.
pub fn status(
    kernel: &KernelRoot,
    root: &Path,
    only: Option<&UnitName>,
) -> Result<Vec<Enabled>, SystemdError> {
    let manager = Manager::of(root);
    let mut found = Vec::new();
    for (name, path, held) in held(root)? {
        if only.is_some_and(|only| *only != name) {
            continue;
        }
        let (options, changed) = match held {
            Held::Whole(drop_in) => (drop_in.options, false),
            _ => (String::new(), true),
        };
        let failed = |source| SystemdError::Io { path: path.clone(), source };
        let written = fs::metadata(&path).and_then(|it| it.modified()).map_err(failed)?;
        let since = written.duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
        let services = match manager {
            Some(manager) => services(kernel, manager, &name, since)?,
            None => Vec::new(),
        };
        found.push(Enabled { unit: name.to_string(), path, options, since, changed, services });
    }
    match only {
        Some(unit) if found.is_empty() => {
            let path = root.join(PLACE).join(format!("{unit}.d")).join(DROP_IN);
            Err(SystemdError::NotEnabled { unit: unit.clone(), path })
        }
        _ => Ok(found),
    }
}

/// Returns the names of all services that are enabled below `root`, also of those whose drop-in was
/// changed since.
pub fn enabled(root: &Path) -> Result<Vec<UnitName>, SystemdError> {
    Ok(held(root)?.into_iter().map(|(name, ..)| name).collect())
}

/// Returns the drop-ins below `root` that megapage has written.
fn held(root: &Path) -> Result<Vec<(UnitName, PathBuf, Held)>, SystemdError> {
    let place = root.join(PLACE);
    let failed = |path: &Path| {
        let path = path.to_path_buf();
        move |source| SystemdError::Io { path, source }
    };
    let tree = Tree::open(root).map_err(failed(root))?;
    let mut found = Vec::new();
    for directory in tree.names(&place, MOST).map_err(failed(&place))? {
        let name = directory.to_str().and_then(|name| name.strip_suffix(".service.d"));
        let Some(Ok(name)) = name.map(UnitName::parse) else { continue };
        let path = place.join(&directory).join(DROP_IN);
        // A directory that is a link is not ours.
        let Ok(Some(text)) = tree.read(&path, 1 << 16) else { continue };
        match DropIn::read(&text) {
            Held::Other => {}
            held => found.push((name, path, held)),
        }
    }
    Ok(found)
}

/// Returns the processes of a service; none if it does not run.
pub fn processes(kernel: &KernelRoot, unit: &UnitName) -> Result<Vec<Pid>, SystemdError> {
    let Some(manager) = Manager::of(Path::new("/")) else {
        return Err(refused(unit, "systemd does not run here; give process numbers"));
    };
    let state = manager.state(unit)?;
    Ok(state.group.iter().flat_map(|group| members(kernel, group)).collect())
}

fn services(
    kernel: &KernelRoot,
    manager: Manager,
    name: &UnitName,
    since: u64,
) -> Result<Vec<Running>, SystemdError> {
    let units = match name.instance() {
        Some("") => manager.instances(name)?,
        _ => vec![name.clone()],
    };
    units.into_iter().map(|unit| Ok(running(kernel, &unit, &manager.state(&unit)?, since))).collect()
}

fn running(kernel: &KernelRoot, unit: &UnitName, state: &State, since: u64) -> Running {
    let mut running = Running {
        unit: unit.to_string(),
        state: state.active.clone(),
        main_pid: state.main.map(|pid| pid.0),
        processes: 0,
        unreadable: 0,
        memory: BackingBytes::default(),
        huge_share: None,
        reason: None,
    };
    let mut has_library = false;
    for pid in state.group.iter().flat_map(|group| members(kernel, group)) {
        match read_smaps(kernel, pid) {
            Ok(mappings) => {
                running.processes += 1;
                running.memory += backing(&mappings);
                has_library |= mappings.iter().any(is_library);
            }
            Err(error) if error.is_gone() => {}
            Err(_) => running.unreadable += 1,
        }
    }
    let total = running.memory.total();
    if total >= LITTLE {
        running.huge_share = Some(running.memory.huge().0 as f64 / total.0 as f64);
    }
    let facts = Facts {
        runs: state.main.is_some(),
        older: state.since.is_some_and(|began| began < since),
        stale: state.needs_reload,
        unreadable: running.processes == 0 && running.unreadable > 0,
        has_library,
        plain: why_plain(kernel, Path::new("/"), unit),
        thp_never: matches!(settings(kernel), Ok(Some(settings)) if settings.enabled == ThpEnabled::Never),
    };
    running.reason = facts.reason(running.huge_share, running.main_pid);
    running
}

fn is_library(mapping: &Mapping) -> bool {
    mapping.name.rsplit('/').next() == Some(LIBRARY)
}

/// Returns the processes in a control group and in the groups below it.
fn members(kernel: &KernelRoot, group: &str) -> Vec<Pid> {
    let below = format!("{group}/");
    let is_in = |pid: &Pid| -> Result<bool, KernelError> {
        let own = read_cgroup(kernel, *pid)?;
        Ok(own == group || own.starts_with(&below))
    };
    // A process that has ended belongs to no group.
    let all = list_processes(kernel).unwrap_or_default();
    all.into_iter().filter(|pid| is_in(pid).unwrap_or(false)).collect()
}

/// Facts that explain a small share.
struct Facts {
    runs: bool,
    older: bool,
    stale: bool,
    unreadable: bool,
    has_library: bool,
    /// The reason why it starts without megapage, if it does.
    plain: Option<String>,
    thp_never: bool,
}

impl Facts {
    fn reason(&self, share: Option<f64>, pid: Option<i32>) -> Option<String> {
        if let Some(why) = &self.plain {
            return Some(format!("starts without megapage, because {why}; megapage enable tries again"));
        }
        if !self.runs {
            return None;
        }
        if self.stale {
            return Some("systemd has not read the drop-in yet: systemctl daemon-reload".into());
        }
        if self.older {
            return Some("runs since before it was enabled: systemctl restart takes it up".into());
        }
        if self.unreadable {
            return Some("its memory may not be read: run as root".into());
        }
        match share {
            None => Some(format!("holds less than {LITTLE}")),
            Some(share) if share >= MUCH => None,
            Some(_) if self.thp_never && !self.has_library => {
                Some("transparent huge pages are set to never, and the library is not in it".into())
            }
            Some(_) => {
                let pid = pid.map_or_else(|| "PID".to_string(), |pid| pid.to_string());
                let library = if self.has_library { "" } else { "the library is not in it; " };
                Some(format!("{library}megapage doctor --why {pid} says of each range why"))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const USUAL: Facts = Facts {
        runs: true,
        older: false,
        stale: false,
        unreadable: false,
        has_library: true,
        plain: None,
        thp_never: false,
    };

    #[test]
    fn a_service_is_found_by_the_group_that_systemd_has_made() {
        let tree = tempfile::tempdir().unwrap();
        for (pid, groups) in [
            // Hybrid: the memory controller has a hierarchy of version 1, in which not every
            // service has a group.
            (
                7,
                "5:memory:/system.slice\n1:name=systemd:/system.slice/db.service\n0::/system.slice/db.service\n",
            ),
            (8, "5:memory:/\n1:name=systemd:/system.slice/db.service/worker\n0::/\n"),
            (9, "5:memory:/system.slice\n1:name=systemd:/system.slice/other.service\n0::/\n"),
        ] {
            let directory = tree.path().join(format!("proc/{pid}"));
            fs::create_dir_all(&directory).unwrap();
            fs::write(directory.join("cgroup"), groups).unwrap();
        }
        let root = KernelRoot::captured(tree.path());
        assert_eq!(members(&root, "/system.slice/db.service"), [Pid(7), Pid(8)]);
    }

    #[test]
    fn the_first_reason_that_holds_is_given() {
        let of = |facts: &Facts, share| facts.reason(share, Some(7)).unwrap_or_default();
        assert_eq!(of(&USUAL, Some(0.9)), "");
        assert_eq!(of(&USUAL, Some(0.1)), "megapage doctor --why 7 says of each range why");
        assert!(
            of(&Facts { has_library: false, ..USUAL }, Some(0.1)).starts_with("the library is not in it")
        );
        assert!(of(&Facts { older: true, ..USUAL }, Some(0.1)).contains("systemctl restart"));
        assert!(of(&Facts { stale: true, older: true, ..USUAL }, None).contains("daemon-reload"));
        assert!(of(&Facts { unreadable: true, ..USUAL }, None).contains("run as root"));
        assert_eq!(of(&USUAL, None), "holds less than 8 MiB");
        assert_eq!(of(&Facts { runs: false, ..USUAL }, None), "");
        let plain = Facts { runs: false, plain: Some("it failed".into()), ..USUAL };
        assert!(of(&plain, None).starts_with("starts without megapage, because it failed"));
        assert!(of(&Facts { thp_never: true, has_library: false, ..USUAL }, Some(0.0)).contains("never"));
    }
}
