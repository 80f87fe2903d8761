//! How units are written in JSON, for `#[serde(serialize_with = ...)]`: a page size as its name, bytes as a bare
//! figure, a process as its number.

use megapage_units::{Bytes, PageSize, Pid};
use serde::Serializer;

/// `"2m"`.
pub fn page_size<S: Serializer>(size: &PageSize, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(size)
}

/// `2097152`.
pub fn bytes<S: Serializer>(bytes: &Bytes, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(bytes.0)
}

/// `2097152` or `null`.
pub fn some_bytes<S: Serializer>(bytes: &Option<Bytes>, to: S) -> Result<S::Ok, S::Error> {
    match bytes {
        Some(bytes) => to.serialize_u64(bytes.0),
        None => to.serialize_none(),
    }
}

/// `4711`.
pub fn pid<S: Serializer>(pid: &Pid, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_i32(pid.0)
}
