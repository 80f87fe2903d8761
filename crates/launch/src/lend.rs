//! Lending: the program and its preloaded libraries in a directory that another container mounts, laid out as they are
//! installed, so that the program finds its libraries there.

use crate::machine::{LIBRARY_NAME, TEXT_LIBRARY_NAME};
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// A file that cannot be lent.
#[derive(Debug, Error)]
#[error("{}: {source}", .path.display())]
pub struct LendError {
    /// The file.
    pub path: PathBuf,
    /// What the kernel answered.
    pub source: io::Error,
}

/// Copies `program`, which lies in a prefix's `bin`, and its libraries to `directory`; the paths of the copies. A copy that is
/// there is replaced at once, so that programs that have it mapped keep theirs.
pub fn lend(program: &Path, directory: &Path) -> Result<Vec<PathBuf>, LendError> {
    let installed = program.parent().unwrap_or(Path::new("/")).join("../lib/megapage");
    let libraries =
        [LIBRARY_NAME, TEXT_LIBRARY_NAME].map(|name| (installed.join(name), format!("lib/megapage/{name}")));
    let files = [(program.to_path_buf(), "bin/megapage".to_string())].into_iter().chain(libraries);
    files
        .map(|(from, name)| {
            let to = directory.join(name);
            copy(&from, &to)?;
            Ok(to)
        })
        .collect()
}

fn copy(from: &Path, to: &Path) -> Result<(), LendError> {
    let of = |path: &Path| {
        let path = path.to_path_buf();
        |source| LendError { path, source }
    };
    let parent = to.parent().unwrap_or(Path::new("/"));
    fs::create_dir_all(parent).map_err(of(parent))?;
    let part = to.with_extension("part");
    fs::copy(from, &part).map_err(of(from))?;
    // Any user of the other container.
    fs::set_permissions(&part, Permissions::from_mode(0o755)).map_err(of(&part))?;
    fs::rename(&part, to).map_err(of(to))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_lent_is_laid_out_as_installed() {
        let prefix = tempfile::tempdir().unwrap();
        let at = |name: &str| prefix.path().join(name);
        for name in ["bin/megapage", "lib/megapage/libmegapage.so", "lib/megapage/libmegapage_text.so"] {
            fs::create_dir_all(at(name).parent().unwrap()).unwrap();
            fs::write(at(name), name).unwrap();
        }
        let to = prefix.path().join("lent");
        // The second time it replaces what is there.
        for _ in 0..2 {
            let lent = lend(&at("bin/megapage"), &to).unwrap();
            assert_eq!(lent.len(), 3);
            for path in lent {
                assert_eq!(to.join(fs::read_to_string(&path).unwrap()), path);
                assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o755);
            }
        }
        assert_eq!(fs::read_dir(to.join("lib/megapage")).unwrap().count(), 2, "no part is left");
        fs::remove_file(at("lib/megapage/libmegapage.so")).unwrap();
        let error = lend(&at("bin/megapage"), &to).unwrap_err();
        assert!(error.to_string().contains("libmegapage.so"), "{error}");
    }
}
