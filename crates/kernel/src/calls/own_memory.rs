//! This process's memory as a file, for tests that must inspect addresses without unsafe code.

use std::fs::{File, OpenOptions};
use std::io;

/// Opens `/proc/self/mem` for reading and writing. An inaccessible address is an error (EIO) of
/// `read_at` and `write_at` instead of a signal.
pub fn own_memory() -> io::Result<File> {
    OpenOptions::new().read(true).write(true).open("/proc/self/mem")
}
