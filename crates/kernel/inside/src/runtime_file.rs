//! Files of `/run/megapage`, which hold until the next boot.

use std::path::{Path, PathBuf};

/// The directory, from the root of a system.
pub const RUNTIME_DIRECTORY: &str = "run/megapage";

/// Returns the path of the file `name` in the directory of the running system.
pub fn runtime_file(name: &str) -> PathBuf {
    Path::new("/").join(RUNTIME_DIRECTORY).join(name)
}
