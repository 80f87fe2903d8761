//! Transparent huge pages that are switched off for a process by prctl(PR_SET_THP_DISABLE): who did
//! it, and whether on purpose.
//!
//! The flag passes on to all that a process forks and executes. Programs that set it for themselves
//! (bun, Ruby, container runtimes) so set it for whatever is started from them. Any process may
//! clear its own, and none another's.

use megapage_kernel::process::{Status, read_status};
use megapage_kernel::{KernelRoot, thp};
use megapage_units::Pid;

/// Environment variable: the kind, `never` or `advised`, for a program that was started with
/// `--thp`, and for its descendants.
pub const THP_VARIABLE: &str = "MEGAPAGE_THP";
/// Processes above one that are looked at, at most.
const MOST_ABOVE: usize = 64;

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchedOff {
    /// In words: for which process above it they were switched off, too, as far up as it goes.
    pub by: String,
    /// It was for this program: by the unit of its service, or by a `megapage run --thp never` or
    /// `advised` that started it or a process above it.
    pub on_purpose: bool,
}

impl SwitchedOff {
    /// Returns who switched them off for the process with this status; `None` if they are on, or
    /// the kernel has none. `on_purpose` is set for a unit alone; the caller looks at the
    /// environment.
    pub fn of(root: &KernelRoot, own: &Status) -> Option<SwitchedOff> {
        // Without transparent huge pages the kernel says of every process that it may have none.
        if !thp::is_switched_off(root, own) {
            return None;
        }
        let (mut top, mut above) = (own.clone(), None);
        for _ in 0..MOST_ABOVE {
            match read_status(root, top.parent).ok().filter(|_| top.parent > Pid(0)) {
                Some(parent) if parent.thp_enabled == Some(false) => top = parent,
                other => {
                    above = other;
                    break;
                }
            }
        }
        let inherited = top.pid != own.pid;
        let by = match (inherited, &above) {
            (true, _) => format!("inherited from {} (process {})", top.name, top.pid),
            (false, Some(parent)) => {
                format!("set between {} (process {}) and it", parent.name, parent.pid)
            }
            (false, None) => "inherited from outside of its container, or set by itself".into(),
        };
        let by_unit = !inherited && above.is_some_and(|parent| parent.name == "systemd");
        Some(SwitchedOff { by, on_purpose: by_unit })
    }

    /// Returns a line for a report of the program, for which the flag is cleared unless it was set
    /// on purpose.
    pub fn note(&self) -> String {
        let what = match self.on_purpose {
            true => "left so, as it was on purpose",
            false => "cleared for this program",
        };
        format!("transparent huge pages were switched off (PR_SET_THP_DISABLE), {}: {what}", self.by)
    }

    /// Returns a line for a report of a process that runs already.
    pub fn note_of_running(&self) -> String {
        format!(
            "transparent huge pages are switched off for this process (PR_SET_THP_DISABLE), {}: nothing can be promoted, and \
             only the process itself can clear it; megapage run clears it for a program that it starts",
            self.by
        )
    }
}

#[cfg(test)]
mod tests;
