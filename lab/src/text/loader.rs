//! Dynamic loader that knows glibc.elf.thp: the system's, or that of another glibc whose files lie
//! in a directory.

use anyhow::{Context, Result, ensure};
use std::env::consts::ARCH;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Paths of the system's loader.
const PLACES: [&str; 2] = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"];
const TUNABLE: &[u8] = b"glibc.elf.thp";

/// Another glibc, which needs no separate root directory: its loader runs a program by its path,
/// with its libraries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Loader {
    program: PathBuf,
    libraries: PathBuf,
}

impl Loader {
    /// Returns the loader of the glibc below `directory`, as
    /// `dpkg -x libc6_2.44-3_amd64.deb DIRECTORY` leaves it. Fails if there is none, or if it does
    /// not know the tunable.
    pub(super) fn below(directory: &Path) -> Result<Loader> {
        let libraries = directory.join(format!("usr/lib/{ARCH}-linux-gnu"));
        let names = PLACES.iter().filter_map(|place| place.rsplit('/').next());
        let program = names.map(|name| libraries.join(name)).find(|path| path.is_file());
        let program = program.with_context(|| {
            format!(
                "{} holds no dynamic loader: give the directory that 'dpkg -x' has unpacked libc6 to",
                libraries.display()
            )
        })?;
        let knows = knows_tunable(&program).with_context(|| program.display().to_string())?;
        ensure!(knows, "{} has no tunable glibc.elf.thp: 2.44 and later do", program.display());
        Ok(Loader { program, libraries })
    }

    /// Returns its own version line: `ld.so (Debian GLIBC 2.44-3) stable release version 2.44.`
    pub(super) fn version(&self) -> String {
        let printed = Command::new(&self.program).arg("--version").stdin(Stdio::null()).output();
        let printed = printed.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
        let line = printed.ok().and_then(|text| text.lines().next().map(str::to_string));
        line.unwrap_or_else(|| self.program.display().to_string())
    }

    /// Returns the words before a program that this loader is to run.
    pub(super) fn words(&self) -> [String; 3] {
        let text = |path: &Path| path.to_string_lossy().into_owned();
        [text(&self.program), "--library-path".into(), text(&self.libraries)]
    }
}

/// Returns true if the system's dynamic loader knows the tunable.
pub(super) fn systems_has_tunable() -> bool {
    PLACES.into_iter().find_map(|path| knows_tunable(Path::new(path)).ok()).unwrap_or(false)
}

fn knows_tunable(loader: &Path) -> std::io::Result<bool> {
    Ok(fs::read(loader)?.windows(TUNABLE.len()).any(|window| window == TUNABLE))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_glibc_is_found_where_dpkg_has_unpacked_it() {
        let directory = tempfile::tempdir().unwrap();
        let error = |path: &Path| Loader::below(path).unwrap_err().to_string();
        assert!(
            error(directory.path()).ends_with(
                "holds no dynamic loader: give the directory that 'dpkg -x' has unpacked libc6 to"
            )
        );
        let libraries = directory.path().join(format!("usr/lib/{ARCH}-linux-gnu"));
        fs::create_dir_all(&libraries).unwrap();
        let program = libraries.join("ld-linux-x86-64.so.2");
        fs::write(&program, "glibc.malloc.hugetlb").unwrap();
        assert!(error(directory.path()).ends_with("has no tunable glibc.elf.thp: 2.44 and later do"));
        fs::write(&program, "... glibc.elf.thp ...").unwrap();
        let words = Loader::below(directory.path()).unwrap().words();
        assert_eq!(words[1], "--library-path");
        assert_eq!((Path::new(&words[0]), Path::new(&words[2])), (program.as_path(), libraries.as_path()));
    }
}
