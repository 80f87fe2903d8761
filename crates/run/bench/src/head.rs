//! The head of every report: the bench, the build and the machine.

use crate::build::BuildReport;
use anyhow::Result;
use megapage_kernel::thp::{ThpSettings, settings};
use megapage_kernel::{KernelRoot, machine, meminfo};
use serde::Serialize;
use std::time::{SystemTime, UNIX_EPOCH};

/// The head of every report.
#[derive(Clone, Debug, Serialize)]
pub struct Head {
    /// The bench's name, as on the command line.
    pub bench: &'static str,
    /// Start time, in seconds since 1970.
    pub began_unix_seconds: u64,
    /// The build.
    pub build: BuildReport,
    /// The machine.
    pub machine: MachineReport,
}

impl Head {
    /// Returns the head of a bench that begins now, on this machine.
    pub fn begin(bench: &'static str) -> Result<Head> {
        let began = SystemTime::now().duration_since(UNIX_EPOCH);
        Ok(Head {
            bench,
            began_unix_seconds: began.map_or(0, |time| time.as_secs()),
            build: BuildReport::of_this_program(),
            machine: MachineReport::read()?,
        })
    }
}

/// The machine that a bench ran on.
#[derive(Clone, Debug, Serialize)]
pub struct MachineReport {
    /// The processors' model.
    pub processor: String,
    /// Number of processors online.
    pub processors: usize,
    /// True for a virtual machine.
    pub virtualised: bool,
    /// Release of the running kernel.
    pub kernel: String,
    /// Total memory in bytes.
    pub memory_bytes: u64,
    /// Setting `enabled` of transparent huge pages; empty on a kernel without them.
    pub thp_enabled: String,
    /// Setting `defrag` of transparent huge pages; empty on a kernel without them.
    pub thp_defrag: String,
}

impl MachineReport {
    /// Reads the values of the running machine.
    pub fn read() -> Result<MachineReport> {
        let root = KernelRoot::live();
        let machine = machine(&root)?;
        let thp = settings(&root)?;
        let setting = |text: fn(&ThpSettings) -> String| thp.as_ref().map(text).unwrap_or_default();
        Ok(MachineReport {
            processor: machine.processor,
            processors: machine.processors,
            virtualised: machine.virtualised,
            kernel: machine.kernel,
            memory_bytes: meminfo(&root)?.total.map_or(0, |total| total.0),
            thp_enabled: setting(|thp| thp.enabled.to_string()),
            thp_defrag: setting(|thp| thp.defrag.to_string()),
        })
    }
}
