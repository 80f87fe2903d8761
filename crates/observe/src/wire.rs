//! How units are written in JSON: a page size as its name, bytes as a bare figure.

use megapage_units::{Bytes, PageSize, Pid};
use serde::Serializer;

pub(crate) fn page_size<S: Serializer>(size: &PageSize, to: S) -> Result<S::Ok, S::Error> {
    to.collect_str(size)
}

pub(crate) fn bytes<S: Serializer>(bytes: &Bytes, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_u64(bytes.0)
}

pub(crate) fn some_bytes<S: Serializer>(bytes: &Option<Bytes>, to: S) -> Result<S::Ok, S::Error> {
    match bytes {
        Some(bytes) => to.serialize_u64(bytes.0),
        None => to.serialize_none(),
    }
}

pub(crate) fn pid<S: Serializer>(pid: &Pid, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_i32(pid.0)
}
