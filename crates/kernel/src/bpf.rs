//! BPF programs that are compiled into this crate.

pub mod function_calls;
pub mod page_tables;

use libbpf_rs::{Map, MapCore, Object, ObjectBuilder, ProgramMut};
use std::io;

/// Compiled BPF object, aligned as the ELF reader needs it.
#[repr(align(8))]
pub(crate) struct Aligned<T: ?Sized>(pub T);

/// Loads an object into the kernel.
pub(crate) fn load(object: &Aligned<[u8]>) -> io::Result<Object> {
    // libbpf would print to standard error; this crate reports its errors instead.
    libbpf_rs::set_print(None);
    ObjectBuilder::default().open_memory(&object.0).and_then(|open| open.load()).map_err(io_error)
}

/// Returns the program with this name.
pub(crate) fn program<'a>(object: &'a mut Object, name: &str) -> io::Result<ProgramMut<'a>> {
    let found = object.progs_mut().find(|program| program.name() == name);
    found.ok_or_else(|| io::Error::other(format!("no BPF program {name}")))
}

/// Returns the map with this name.
pub(crate) fn map<'a>(object: &'a Object, name: &str) -> io::Result<Map<'a>> {
    let found = object.maps().find(|map| map.name() == name);
    found.ok_or_else(|| io::Error::other(format!("no BPF map {name}")))
}

/// Returns libbpf's error with libbpf's own text.
pub(crate) fn io_error(error: libbpf_rs::Error) -> io::Error {
    io::Error::other(error.to_string())
}
