//! Form of units in JSON, for `#[serde(serialize_with = ...)]`: a page size as its name, bytes as a
//! bare value, a process as its number.

use megapage_units::{Bytes, PageSize, Pid, VirtRange};
use serde::Serializer;
use std::fmt::{Display, LowerHex};
use std::time::Duration;

/// Writes a page size as `"2m"`.
pub fn page_size<S: Serializer>(size: &PageSize, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(size)
}

/// Writes bytes as `2097152`.
pub fn bytes<S: Serializer>(bytes: &Bytes, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(bytes.0)
}

/// Writes bytes as `2097152`, or `null`.
pub fn some_bytes<S: Serializer>(bytes: &Option<Bytes>, to: S) -> Result<S::Ok, S::Error> {
    match bytes {
        Some(bytes) => to.serialize_u64(bytes.0),
        None => to.serialize_none(),
    }
}

/// Writes a process identifier as `4711`.
pub fn pid<S: Serializer>(pid: &Pid, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_i32(pid.0)
}

/// Writes process identifiers as `[4711, 4712]`.
pub fn pids<S: Serializer>(pids: &[Pid], to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq(pids.iter().map(|pid| pid.0))
}

/// Writes seconds with a fraction.
pub fn seconds<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_f64(time.as_secs_f64())
}

/// Writes seconds with a fraction, or `null`.
pub fn some_seconds<S: Serializer>(time: &Option<Duration>, to: S) -> Result<S::Ok, S::Error> {
    match time {
        Some(time) => to.serialize_f64(time.as_secs_f64()),
        None => to.serialize_none(),
    }
}

/// Writes a range as `["7f0000000000", "7f0000200000"]`: addresses in hexadecimal, which JSON's
/// numbers cannot hold exactly.
pub fn range<S: Serializer>(range: &VirtRange, to: S) -> Result<S::Ok, S::Error> {
    to.collect_seq([format!("{:x}", range.start()), format!("{:x}", range.end())])
}

/// Writes an address, or that of a huge page, as `"7f0000000000"`.
pub fn address<S: Serializer>(address: &impl LowerHex, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(&format_args!("{address:x}"))
}

/// Writes a kernel word, such as `madvise`.
pub fn word<T: Display, S: Serializer>(word: &T, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(word)
}
