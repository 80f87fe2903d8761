//! This process's memory as a file, for tests that must look at addresses without unsafe code.

use std::fs::{File, OpenOptions};
use std::io;

/// `/proc/self/mem`, open for reading and writing: with `read_at` and `write_at` an address that cannot be
/// accessed is an error (EIO) instead of a signal.
pub fn own_memory() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open("/proc/self/mem")
}
