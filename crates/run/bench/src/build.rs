//! The build that produced a report: results are compared only with those of the same programs.

use serde::Serialize;
use std::env;
use std::fs::File;
use std::hash::{DefaultHasher, Hasher};
use std::io::Read;
use std::path::Path;

/// Programs and libraries, installed with the running program, that decide the results of a bench.
const PROGRAMS: [&str; 5] =
    ["megapage", "megapage-lab", "megapage-lab-workload", "libmegapage.so", "libmegapage_text.so"];
/// Directories of [`PROGRAMS`], relative to the program's: its own, and that of `make install`.
const DIRECTORIES: [&str; 2] = [".", "../lib/megapage"];
/// Environment variable with the commit that the programs were built from. A caller that has built
/// them itself sets it, as `make results` does.
pub const SOURCE_VARIABLE: &str = "MEGAPAGE_BENCH_SOURCE";

/// A build of megapage.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct BuildReport {
    /// The version.
    pub version: &'static str,
    /// A digest of the measured programs and libraries, in hexadecimal: the same for the same
    /// files. It is an identifier, and proves nothing.
    pub programs: String,
    /// The commit, from MEGAPAGE_BENCH_SOURCE; `None` if that is unset or empty.
    pub source: Option<String>,
}

impl BuildReport {
    /// Returns the build of the running program.
    pub fn of_this_program() -> BuildReport {
        let this = env::current_exe().unwrap_or_default();
        BuildReport {
            version: env!("CARGO_PKG_VERSION"),
            programs: digest(this.parent().unwrap_or(Path::new("/"))),
            source: env::var(SOURCE_VARIABLE).ok().filter(|source| !source.is_empty()),
        }
    }
}

/// Returns the digest of the programs and libraries that belong to `directory`, by name and
/// contents. A missing file adds nothing.
fn digest(directory: &Path) -> String {
    let mut hasher = DefaultHasher::new();
    for name in PROGRAMS {
        let found = DIRECTORIES.iter().find_map(|place| File::open(directory.join(place).join(name)).ok());
        let Some(mut file) = found else { continue };
        hasher.write(name.as_bytes());
        let mut buffer = vec![0; 1 << 16];
        while let Ok(read) = file.read(&mut buffer)
            && read > 0
        {
            hasher.write(&buffer[..read]);
        }
    }
    format!("{:016x}", hasher.finish())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn another_program_or_library_is_another_build() {
        let directory = tempfile::tempdir().unwrap();
        let installed = directory.path().join("lib/megapage");
        let programs = directory.path().join("bin");
        fs::create_dir_all(&installed).unwrap();
        fs::create_dir_all(&programs).unwrap();
        let none = digest(&programs);
        fs::write(programs.join("megapage"), "program").unwrap();
        let alone = digest(&programs);
        fs::write(installed.join("libmegapage.so"), "library").unwrap();
        let whole = digest(&programs);
        assert!(none != alone && alone != whole, "{none} {alone} {whole}");
        assert_eq!(digest(&programs), whole);
        fs::write(installed.join("libmegapage.so"), "Library").unwrap();
        assert_ne!(digest(&programs), whole);
        fs::write(programs.join("unrelated"), "x").unwrap();
        fs::write(installed.join("libmegapage.so"), "library").unwrap();
        assert_eq!(digest(&programs), whole);
    }
}
