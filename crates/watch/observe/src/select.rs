//! Selection of processes by the user: identifiers, and names as pgrep(1) takes them.

use megapage_kernel::process::{list_processes, read_status};
use megapage_kernel::{KernelError, KernelRoot};
use megapage_units::{Bytes, Pid};
use regex_lite::Regex;
use std::collections::BTreeSet;
use thiserror::Error;

/// Reason why processes could not be found.
#[derive(Debug, Error)]
pub enum SelectError {
    /// No process has this identifier.
    #[error("there is no process {0}")]
    NoSuchPid(String),
    /// No process has this name, except megapage itself.
    #[error("no process matches '{pattern}'{hint}")]
    NoMatch {
        /// Pattern as the user gave it.
        pattern: String,
        /// Possible reason, or empty.
        hint: &'static str,
    },
    /// The pattern is not a regular expression.
    #[error("'{pattern}' is neither a process identifier nor a regular expression: {what}")]
    BadPattern {
        /// Pattern as the user gave it.
        pattern: String,
        /// Error in the pattern.
        what: String,
    },
    /// The processes could not be listed.
    #[error(transparent)]
    Kernel(#[from] KernelError),
}

/// Bytes of a command name that the kernel keeps.
const LONGEST_NAME: usize = 15;

/// Returns the processes that `patterns` name, ascending, each once. A pattern of digits is the
/// identifier of a process, or of one of its threads. Any other is a regular expression, matched
/// anywhere in the command names, as by pgrep(1). `redis` finds `redis-server`; `^java$` finds
/// `java` alone. Names never select the calling process or kernel threads. Fails if a pattern finds
/// nothing.
pub fn select_processes(root: &KernelRoot, patterns: &[String]) -> Result<Vec<Pid>, SelectError> {
    let mut selected = BTreeSet::new();
    // Names are read once, and only if a pattern needs them.
    let mut names: Option<Vec<(Pid, String)>> = None;
    for pattern in patterns {
        if let Some(pid) = pid(pattern) {
            let status = read_status(root, pid).map_err(|error| match error {
                error if error.is_gone() => SelectError::NoSuchPid(pattern.clone()),
                error => SelectError::Kernel(error),
            })?;
            selected.insert(status.pid);
            continue;
        }
        let bad = |what: String| SelectError::BadPattern { pattern: pattern.clone(), what };
        if pattern.is_empty() {
            return Err(bad("it is empty, and would match every process".into()));
        }
        let expression = Regex::new(pattern).map_err(|error| bad(error.to_string()))?;
        if names.is_none() {
            names = Some(read_names(root)?);
        }
        let before = selected.len();
        let mut any = false;
        for (pid, _) in names.iter().flatten().filter(|(_, name)| expression.is_match(name)) {
            selected.insert(*pid);
            any = true;
        }
        if before == selected.len() && !any {
            let hint = match pattern.len() > LONGEST_NAME {
                true => {
                    ": the kernel keeps 15 bytes of a name; shorten the pattern or give a process identifier"
                }
                false => "",
            };
            return Err(SelectError::NoMatch { pattern: pattern.clone(), hint });
        }
    }
    Ok(selected.into_iter().collect())
}

fn pid(pattern: &str) -> Option<Pid> {
    let digits = !pattern.is_empty() && pattern.bytes().all(|byte| byte.is_ascii_digit());
    // A number too large for an identifier becomes one that no process has.
    digits.then(|| Pid(pattern.parse().unwrap_or(i32::MAX)))
}

fn read_names(root: &KernelRoot) -> Result<Vec<(Pid, String)>, KernelError> {
    let own = Pid(std::process::id().cast_signed());
    // Processes that have ended meanwhile, or are hidden from us, are skipped.
    let status = |pid| read_status(root, pid).ok();
    Ok(list_processes(root)?
        .into_iter()
        .filter(|pid| *pid != own)
        .filter_map(status)
        .filter(|status| status.page_tables > Bytes::ZERO)
        .map(|status| (status.pid, status.name))
        .collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Creates processes 10 `redis-server`, 11 `java`, 12 `javac`, kernel thread 2 `kswapd0`, and
    /// this one.
    fn tree() -> (tempfile::TempDir, KernelRoot) {
        let tree = tempfile::tempdir().unwrap();
        let own = std::process::id();
        for (pid, name, page_tables) in [
            (10, "redis-server", "VmPTE:\t40 kB\n"),
            (11, "java", "VmPTE:\t40 kB\n"),
            (12, "javac", "VmPTE:\t40 kB\n"),
            (2, "kswapd0", ""),
            (own, "redis-observer", "VmPTE:\t40 kB\n"),
        ] {
            let directory = tree.path().join(format!("proc/{pid}"));
            std::fs::create_dir_all(&directory).unwrap();
            let text = format!("Name:\t{name}\nTgid:\t{pid}\nPPid:\t1\n{page_tables}");
            std::fs::write(directory.join("status"), text).unwrap();
        }
        // A thread of 11 is not listed, but its directory can be opened.
        std::fs::create_dir_all(tree.path().join("proc/15")).unwrap();
        std::fs::write(tree.path().join("proc/15/status"), "Name:\tGC\nTgid:\t11\nVmPTE:\t40 kB\n").unwrap();
        let root = KernelRoot::captured(tree.path());
        (tree, root)
    }

    fn select(patterns: &[&str]) -> Result<Vec<i32>, String> {
        let (_keep, root) = tree();
        let patterns: Vec<String> = patterns.iter().map(|pattern| pattern.to_string()).collect();
        let found = select_processes(&root, &patterns).map_err(|error| error.to_string())?;
        Ok(found.into_iter().map(|pid| pid.0).collect())
    }

    #[test]
    fn names_are_found_as_pgrep_finds_them() {
        assert_eq!(select(&["redis"]).unwrap(), [10], "and not this process");
        assert_eq!(select(&["java"]).unwrap(), [11, 12]);
        assert_eq!(select(&["^java$", "s-s", "java"]).unwrap(), [10, 11, 12]);
        assert_eq!(select(&["12", "11", "15"]).unwrap(), [11, 12], "15 is a thread of 11");
    }

    #[test]
    fn what_finds_nothing_is_named() {
        assert_eq!(select(&["java", "postgres"]).unwrap_err(), "no process matches 'postgres'");
        assert_eq!(select(&["kswapd"]).unwrap_err(), "no process matches 'kswapd'");
        assert_eq!(select(&["4711"]).unwrap_err(), "there is no process 4711");
        assert_eq!(select(&["99999999999999"]).unwrap_err(), "there is no process 99999999999999");
        assert!(select(&["prometheus-node-exporter"]).unwrap_err().contains("15 bytes"));
        assert!(select(&[""]).unwrap_err().ends_with("it is empty, and would match every process"));
        assert!(select(&["*"]).unwrap_err().starts_with("'*' is neither a process identifier nor"));
    }
}
