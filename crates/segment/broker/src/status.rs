//! The status of a broker, as reported to clients.

use megapage_kernel::descriptors::MOST_DESCRIPTORS;
use megapage_memory::stock::wire::{Request, Verdict};
use megapage_memory::stock::{POOL_PATIENCE_VARIABLE, TakeError, ask as ask_for, connect, set_patience};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::{self, Read};
use std::path::Path;
use thiserror::Error;

/// The schema of [`Status`] as JSON.
pub const SCHEMA: &str = "megapage.pool-stock/2";
/// Bytes of text that a broker sends at most, and a client reads.
pub(crate) const MOST_TEXT: usize = 64 << 10;
/// Users in the report, those with the most memory.
pub(crate) const MOST_HOLDERS: usize = 100;

/// Memory that one user has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// The user.
    pub uid: u32,
    /// Processes that took extents and have not ended.
    pub processes: usize,
    /// Extents that they took.
    pub extents: usize,
    /// Bytes of these extents that are present: released pages are not.
    pub bytes: u64,
}

/// Status of a broker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// Its process.
    pub pid: u32,
    /// The size of its pages.
    pub page_bytes: u64,
    /// Pages of an extent: the least that is handed out.
    pub extent_pages: u64,
    /// Pages that are to be ready.
    pub stock_pages: u64,
    /// Pages that are ready.
    pub ready_pages: u64,
    /// Pages that it has added to the machine's pool.
    pub added_pages: u64,
    /// Pages of them that it has released while tasks waited for memory, and will take up again.
    #[serde(default)]
    pub given_back_pages: u64,
    /// Pages of the pool that it leaves to others.
    pub leave_pages: u64,
    /// Bytes that it clears in a second, at most.
    pub rate_bytes: u64,
    /// Bytes that one user may have; `None`: no limit.
    pub quota_bytes: Option<u64>,
    /// True if clearing pauses while tasks wait for memory. It does not if the kernel does not
    /// report it, or is not asked.
    pub watches_pressure: bool,
    /// Reason for which it does not fill the stock at the moment: `memory-pressure`, `pool-short`.
    pub waits: Option<String>,
    /// Users who have memory of it. Root and the broker's own user see all, others only themselves.
    pub holders: Vec<Holder>,
    /// Extents handed out so far.
    pub handed_out: u64,
    /// Extents whose pages went back, because their process has ended.
    pub ended: u64,
    /// Requests that were refused, by reason.
    pub refused: BTreeMap<String, u64>,
    /// Connections that were dropped: they sent nothing in time, or others needed their place.
    pub dropped: u64,
}

/// Failure to get a broker's status.
#[derive(Debug, Error)]
pub enum AskError {
    /// The connection failed.
    #[error(transparent)]
    Take(#[from] TakeError),
    /// The request failed.
    #[error(transparent)]
    Io(#[from] io::Error),
    /// The broker refused it.
    #[error("{}", .0.explain())]
    Refused(Verdict),
    /// The answer has another format.
    #[error("it answers what no broker of this version does: {0}")]
    Text(String),
}

/// Takes this process's patience with brokers from the environment. The error is one line with the
/// reason.
pub fn patience_from_environment() -> Result<(), String> {
    match std::env::var_os(POOL_PATIENCE_VARIABLE) {
        Some(value) if !set_patience(value.as_encoded_bytes()) => Err(format!(
            "{POOL_PATIENCE_VARIABLE}={}: give a number of milliseconds from 1 to 60000, or leave it out for 500",
            value.to_string_lossy()
        )),
        _ => Ok(()),
    }
}

/// Asks the broker at `path` for its status.
pub fn ask(path: &Path) -> Result<Status, AskError> {
    let stream = connect(path)?;
    let answer = ask_for(&stream, Request::Status, &mut [const { None }; MOST_DESCRIPTORS])?;
    if answer.verdict != Verdict::Done {
        return Err(AskError::Refused(answer.verdict));
    }
    if answer.text > MOST_TEXT as u64 {
        return Err(AskError::Text(format!("{} bytes", answer.text)));
    }
    let mut text = vec![0; answer.text as usize];
    (&stream).read_exact(&mut text)?;
    serde_json::from_slice(&text).map_err(|error| AskError::Text(error.to_string()))
}
