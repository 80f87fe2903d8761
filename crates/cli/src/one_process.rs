//! The one process that a user names.

use anyhow::{Result, bail};
use megapage_kernel::KernelRoot;
use megapage_observe::select_processes;
use megapage_units::Pid;

/// Returns the process with this number, or with a name (as pgrep takes them) that matches no
/// other.
pub fn one_process(root: &KernelRoot, name: &str) -> Result<Pid> {
    let pids = select_processes(root, &[name.to_string()])?;
    let [pid] = pids[..] else {
        let pids: Vec<String> = pids.iter().map(ToString::to_string).collect();
        bail!("'{name}' names {} processes; give one of {}", pids.len(), pids.join(", "));
    };
    Ok(pid)
}
