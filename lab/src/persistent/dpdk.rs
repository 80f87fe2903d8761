//! DPDK's own test program: its start, and its bench of its allocator.

use super::cost::Cost;
use crate::install;
use anyhow::{Result, ensure};
use megapage_units::Bytes;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The Debian package with `dpdk-test`.
const PACKAGE: &str = "dpdk-dev";
/// Advice if it is absent.
pub(super) const HOW_TO_INSTALL: &str = "apt-get install dpdk-dev";
/// Directory in which DPDK's processes share their state.
const RUNTIME: &str = "/var/run/dpdk";

megapage_units::named! {
    /// The values of DPDK's `--huge-unlink`.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(super) enum Unlink {
        /// Leftovers are removed, memory is fresh.
        Existing = "existing",
        /// Leftovers are reused.
        Never = "never",
    }
}

/// The installed program.
#[derive(Debug)]
pub(super) struct Dpdk {
    program: PathBuf,
    pub(super) version: String,
    prefix: String,
}

/// Returns the package that is absent.
pub(super) fn lacks() -> Vec<&'static str> {
    if Dpdk::find().is_some() { Vec::new() } else { vec![PACKAGE] }
}

impl Dpdk {
    pub(super) fn find() -> Option<Dpdk> {
        let program = install::find("dpdk-test")?;
        let output = Command::new("dpkg-query").args(["-W", "-f", "${Version}", PACKAGE]).output();
        let version = output.ok().filter(|output| output.status.success()).map(|output| output.stdout);
        let version = version.and_then(|bytes| String::from_utf8(bytes).ok()).unwrap_or_default();
        let version = format!("dpdk {}", if version.is_empty() { "of unknown version" } else { &version });
        Some(Dpdk { program, version, prefix: format!("megapage-bench-{}", std::process::id()) })
    }

    /// Returns the program with this much memory; its standard input has the commands.
    pub(super) fn command(&self, directory: &Path, size: Bytes, unlink: Unlink, single: bool) -> Command {
        let mut command = Command::new(&self.program);
        command.arg(format!("--huge-unlink={}", unlink.name()));
        command.args(["-m", &(size.0 >> 20).to_string()]);
        if single {
            command.arg("--single-file-segments");
        }
        command.arg("--no-pci").arg("--huge-dir").arg(directory);
        command.args(["--file-prefix", &self.prefix, "--no-telemetry", "-l", "0-1"]);
        command
    }
}

impl Drop for Dpdk {
    fn drop(&mut self) {
        // If it was never started there is none.
        let _ = std::fs::remove_dir_all(Path::new(RUNTIME).join(&self.prefix));
    }
}

/// Reads the output of `malloc_perf_autotest`: by `malloc` or `zmalloc` and the bytes of a block.
pub(super) fn read_malloc_perf(printed: &str) -> Result<BTreeMap<(&'static str, u64), Cost>> {
    let mut found = BTreeMap::new();
    let mut kind = None;
    for line in printed.lines() {
        if let Some((_, name)) = line.split_once("Performance: ") {
            kind = match name.trim() {
                "rte_malloc" => Some("malloc"),
                "rte_zmalloc" => Some("zmalloc"),
                _ => None,
            };
        }
        let words: Vec<&str> = line.trim_start_matches("USER1:").split_whitespace().collect();
        let numbers: Option<Vec<f64>> = words.iter().map(|word| word.parse().ok()).collect();
        if let (Some(kind), Some([size, runs, allocate, free, _, memset])) = (kind, numbers.as_deref()) {
            let cost = Cost {
                runs: *runs,
                allocate_us: *allocate,
                free_us: *free,
                memset_us: *memset,
                ..Cost::default()
            };
            found.insert((kind, *size as u64), cost);
        }
    }
    ensure!(
        printed.contains("Test OK") && !found.is_empty(),
        "malloc_perf_autotest of dpdk-test failed: {}",
        printed.lines().rev().find(|line| line.contains("fail")).unwrap_or("it printed no values").trim()
    );
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn its_tables_are_read() {
        let printed = "USER1: Reference: memset\nUSER1: Result: 63.8 GiB/s <=> 15.30 us/MiB\nUSER1: \n\
            USER1: Performance: rte_malloc\nUSER1:     Size (B)    Runs  Alloc (us)   Free (us)  Total (us)      memset (us)\n\
            USER1:           64   10000        0.04        0.02        0.06             0.01\n\
            USER1:   1073741824       2     2339.79     8852.42    11192.21         14381.86\nUSER1: \n\
            USER1: Performance: rte_zmalloc\nUSER1:           64   10000        0.13        0.02        0.15             0.01\n\
            USER1: Performance: rte_memzone_reserve\nUSER1:           64    2559       19.48        0.11       19.58             0.00\n\
            Test OK\n";
        let found = read_malloc_perf(printed).unwrap();
        assert_eq!(found.len(), 3);
        let gigabyte = &found[&("malloc", 1 << 30)];
        assert_eq!((gigabyte.runs, gigabyte.allocate_us, gigabyte.free_us), (2.0, 2339.79, 8852.42));
        assert_eq!(gigabyte.memset_us, 14381.86);
        assert_eq!(found[&("zmalloc", 64)].allocate_us, 0.13);
        let failed = "USER1: rte_malloc(size=40000000) failed\nTest Failed\n";
        let error = read_malloc_perf(failed).unwrap_err().to_string();
        assert!(error.contains("rte_malloc(size=40000000) failed"), "{error}");
    }
}
