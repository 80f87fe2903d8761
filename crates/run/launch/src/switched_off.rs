//! Transparent huge pages that are switched off for a process by prctl(PR_SET_THP_DISABLE): the
//! process that did it, and its purpose.
//!
//! A process passes the flag to all that it forks and executes. Programs that set it for themselves
//! (bun, Ruby, container runtimes) thus set it for all programs that they start. A process can
//! clear only its own flag.

use megapage_kernel::process::{Status, read_status};
use megapage_kernel::{KernelRoot, thp};
use megapage_units::Pid;

/// Environment variable with the kind, `never` or `advised`, for a program that was started with
/// `--thp`, and for its descendants.
pub const THP_VARIABLE: &str = "MEGAPAGE_THP";
/// Largest number of processes above one that are examined.
const MOST_ABOVE: usize = 64;

/// The way in which transparent huge pages are switched off for a process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SwitchedOff {
    /// The source in words: the topmost process above it for which they are switched off too.
    pub by: String,
    /// True if it was meant for this program. Either the unit of its service did it, or a `megapage
    /// run --thp never` or `advised` that started it or a process above it.
    pub on_purpose: bool,
}

impl SwitchedOff {
    /// Returns the source for the process with this status; `None` if they are on, or if the kernel
    /// has none. Sets `on_purpose` only for a unit; the caller checks the environment.
    pub fn of(root: &KernelRoot, own: &Status) -> Option<SwitchedOff> {
        // A kernel without transparent huge pages reports for every process that it may have none.
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

    /// Returns a line for a report of the program. The flag is cleared for it, unless it was set on
    /// purpose.
    pub fn note(&self) -> String {
        let what = match self.on_purpose {
            true => "left so, as it was on purpose",
            false => "cleared for this program",
        };
        format!("transparent huge pages were switched off (PR_SET_THP_DISABLE), {}: {what}", self.by)
    }

    /// Returns a line for a report of a process that was running already.
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
