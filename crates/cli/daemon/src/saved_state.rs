//! State that a daemon keeps over a restart: the regions promoted and split, with times. It holds
//! for this boot and for processes that are still the same; the others are skipped.
//!
//! The file is JSON, replaced as a whole, and checked when it is read: it may be torn, foreign, or
//! of another boot.

use megapage_decide::{SavedDemotion, SavedRegion};
use megapage_kernel::trusted::{Replace, make_directory_of, open_regular, replace_file, require_ours};
use megapage_snapshot::ProcessId;
use megapage_units::Pid;
use serde::{Deserialize, Serialize};
use std::io::{self, ErrorKind, Read};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::Duration;
use thiserror::Error;

const SCHEMA: &str = "megapage.state/1";
/// Start of the schema, in any version.
const SCHEMA_STEM: &str = "megapage.state/";
/// Longest file that is read, in bytes: as needed for 128 Ki regions.
const LONGEST: u64 = 64 << 20;

/// Reason why a file was not used: a warning, no failure.
#[derive(Debug, Error)]
pub enum StateError {
    /// It could not be read or written.
    #[error("{0}")]
    Io(#[from] io::Error),
    /// It is not such a file, or not whole.
    #[error("it is no state of megapage: {0}")]
    Foreign(String),
    /// It is of an earlier boot.
    #[error("it is of an earlier boot")]
    OtherBoot,
    /// Another user owns it, and could put anything into it.
    #[error("it belongs to user {0}, not to us")]
    OtherOwner(u32),
}

/// State of this module.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SavedState {
    regions: Vec<SavedRegion>,
}

#[derive(Serialize, Deserialize)]
struct File {
    schema: String,
    boot: String,
    processes: Vec<OneProcess>,
}

#[derive(Serialize, Deserialize)]
struct OneProcess {
    pid: i32,
    start_ticks: u64,
    start_stack: u64,
    regions: Vec<OneRegion>,
}

/// One region, with times in nanoseconds since boot.
#[derive(Serialize, Deserialize)]
struct OneRegion {
    start: u64,
    acted: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    promoted: Option<u64>,
    /// Time of the demotion, share of memory in use, base pages present.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    demoted: Option<(u64, f64, Option<u16>)>,
    #[serde(default)]
    failures: u32,
    not_before: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    small: Option<u64>,
}

impl SavedState {
    /// Returns the state from a policy's regions.
    pub fn new(regions: Vec<SavedRegion>) -> SavedState {
        SavedState { regions }
    }

    /// Returns the regions of the state.
    pub fn regions(&self) -> &[SavedRegion] {
        &self.regions
    }

    /// Reads a file; without a file the state is empty. `boot` names this boot, and `owner` must
    /// own the file.
    pub fn read(path: &Path, boot: &str, owner: u32) -> Result<SavedState, StateError> {
        let file = match open_regular(path) {
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(SavedState::default()),
            file => file?,
        };
        let metadata = file.metadata()?;
        if metadata.uid() != owner {
            return Err(StateError::OtherOwner(metadata.uid()));
        }
        let mut text = String::new();
        file.take(LONGEST).read_to_string(&mut text)?;
        let file: File =
            serde_json::from_str(&text).map_err(|error| StateError::Foreign(error.to_string()))?;
        if file.schema != SCHEMA {
            return Err(StateError::Foreign(format!("its schema is not {SCHEMA}")));
        }
        if file.boot != boot {
            return Err(StateError::OtherBoot);
        }
        let regions = file.processes.iter().flat_map(|process| {
            let pid = Pid(process.pid);
            let id = ProcessId { pid, start_ticks: process.start_ticks, start_stack: process.start_stack };
            process.regions.iter().map(move |region| region.known(id))
        });
        Ok(SavedState { regions: regions.collect() })
    }

    /// Writes a file: first beside it, then in its place. Makes its directory if that is missing.
    pub fn write(&self, path: &Path, boot: &str) -> io::Result<()> {
        let mut processes: Vec<OneProcess> = Vec::new();
        for region in &self.regions {
            let id = region.process;
            let is_last = processes.last().is_some_and(|last| {
                (last.pid, last.start_ticks, last.start_stack) == (id.pid.0, id.start_ticks, id.start_stack)
            });
            if !is_last {
                let (start_ticks, start_stack) = (id.start_ticks, id.start_stack);
                processes.push(OneProcess { pid: id.pid.0, start_ticks, start_stack, regions: Vec::new() });
            }
            if let Some(last) = processes.last_mut() {
                last.regions.push(OneRegion::new(region));
            }
        }
        let file = File { schema: SCHEMA.into(), boot: boot.into(), processes };
        let text = serde_json::to_string(&file).map_err(io::Error::other)?;
        let path = std::path::absolute(path)?;
        make_directory_of(&path)?;
        is_replaceable(&path)?;
        // It need not survive a crash of the machine: it holds only for this boot.
        replace_file(&path, text.as_bytes(), Replace { mode: 0o600, durable: false })
    }
}

/// Refuses a path that holds anything else than a state of megapage: writing would destroy it. A
/// state that a crash has torn may be replaced.
///
/// # Errors
/// `AlreadyExists` for such a path.
pub fn is_replaceable(path: &Path) -> io::Result<()> {
    require_ours(path, "state", |file| {
        let mut start = Vec::new();
        let beginning = format!("{{\"schema\":\"{SCHEMA_STEM}");
        file.take(beginning.len() as u64).read_to_end(&mut start)?;
        // Blocks that never reached the disk are read as zeros.
        Ok(beginning.as_bytes().starts_with(&start) || start.iter().all(|byte| *byte == 0))
    })
}

impl OneRegion {
    fn new(region: &SavedRegion) -> OneRegion {
        let nanos = |time: Duration| u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        OneRegion {
            start: region.region,
            acted: nanos(region.acted),
            promoted: region.promoted.map(nanos),
            demoted: region.demoted.map(|demoted| (nanos(demoted.at), demoted.in_use, demoted.present)),
            failures: region.failures,
            not_before: nanos(region.not_before),
            small: region.small,
        }
    }

    fn known(&self, process: ProcessId) -> SavedRegion {
        let time = Duration::from_nanos;
        SavedRegion {
            process,
            region: self.start,
            acted: time(self.acted),
            promoted: self.promoted.map(time),
            demoted: self.demoted.map(|(at, in_use, present)| SavedDemotion {
                at: time(at),
                in_use,
                present,
            }),
            failures: self.failures,
            not_before: time(self.not_before),
            small: self.small,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_kernel::effective_uid;

    fn known() -> SavedState {
        let id = |pid| ProcessId { pid: Pid(pid), start_ticks: 7, start_stack: 9 };
        let second = Duration::from_secs;
        let one = SavedRegion {
            process: id(4),
            region: 2 << 20,
            acted: second(5),
            promoted: Some(second(5)),
            demoted: None,
            failures: 3,
            not_before: second(9),
            small: Some(65536),
        };
        let demoted = SavedDemotion { at: second(6), in_use: 0.375, present: Some(17) };
        let two = SavedRegion { region: 4 << 20, promoted: None, demoted: Some(demoted), ..one };
        SavedState::new(vec![one, two, SavedRegion { process: id(5), ..one }])
    }

    #[test]
    fn what_is_written_is_read_as_the_same() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a/b/state.json");
        let read = |boot| SavedState::read(&path, boot, effective_uid());
        assert_eq!(read("boot").unwrap(), SavedState::default(), "there is no file yet");
        known().write(&path, "boot").unwrap();
        known().write(&path, "boot").unwrap();
        assert_eq!(read("boot").unwrap(), known());
        assert!(matches!(read("other"), Err(StateError::OtherBoot)));
        let other = SavedState::read(&path, "boot", effective_uid() + 1);
        assert!(matches!(other, Err(StateError::OtherOwner(_))));
    }

    #[test]
    fn what_is_no_state_is_not_replaced() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("passwd");
        for text in ["root:x:0:0:root:/root:/bin/sh\n", "{}", "\0\0x", "{\"schema\":\"megapage.map/1\"}"] {
            std::fs::write(&path, text).unwrap();
            assert_eq!(is_replaceable(&path).unwrap_err().kind(), ErrorKind::AlreadyExists, "{text}");
            assert_eq!(known().write(&path, "boot").unwrap_err().kind(), ErrorKind::AlreadyExists);
            assert_eq!(std::fs::read_to_string(&path).unwrap(), text);
        }
        for torn in ["", "\0\0", "{\"sch", "{\"schema\":\"megapage.state/9\",\"boot\":\"x"] {
            std::fs::write(&path, torn).unwrap();
            known().write(&path, "boot").unwrap();
            assert_eq!(SavedState::read(&path, "boot", effective_uid()).unwrap(), known());
        }
        let link = directory.path().join("link");
        std::os::unix::fs::symlink(&path, &link).unwrap();
        for other in [link.as_path(), directory.path(), Path::new("/dev/null")] {
            assert!(known().write(other, "boot").is_err(), "{}", other.display());
        }
        assert!(link.is_symlink());
    }

    #[test]
    fn what_is_torn_or_foreign_is_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("state.json");
        known().write(&path, "boot").unwrap();
        let whole = std::fs::read(&path).unwrap();
        for length in 0..whole.len() {
            std::fs::write(&path, &whole[..length]).unwrap();
            let read = SavedState::read(&path, "boot", effective_uid());
            assert!(matches!(read, Err(StateError::Foreign(_))), "{length}: {read:?}");
        }
        for text in ["{}", "[]", "\u{0}", r#"{"schema":"x","boot":"boot","processes":[]}"#] {
            std::fs::write(&path, text).unwrap();
            let read = SavedState::read(&path, "boot", effective_uid());
            assert!(matches!(read, Err(StateError::Foreign(_))), "{text}");
        }
        std::fs::write(&path, [0xff, 0xfe]).unwrap();
        assert!(SavedState::read(&path, "boot", effective_uid()).is_err());
    }
}
