//! The Python package, with the library that was built with this test.

use megapage_kernel::mounts::mount_hugetlbfs;
use megapage_testing::unmount;
use megapage_testing::{PoolGuard, skip};
use megapage_units::PageSize;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Debian's Python: the package python3-numpy is built for it.
const PYTHON: &str = "/usr/bin/python3";

struct Mounted(tempfile::TempDir);

impl Mounted {
    fn new() -> Mounted {
        let point = tempfile::tempdir().unwrap();
        mount_hugetlbfs(point.path(), PageSize::HUGE_2M).unwrap();
        Mounted(point)
    }

    fn path(&self) -> PathBuf {
        std::fs::canonicalize(self.0.path()).unwrap()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(error) = unmount(self.0.path()) {
            eprintln!("{} was not unmounted: {error}", self.0.path().display());
        }
    }
}

fn python(arguments: &[&str]) -> Command {
    let package = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../python").canonicalize().unwrap();
    let mut command = Command::new(PYTHON);
    command
        .args(arguments)
        .current_dir(&package)
        .env("PYTHONPATH", &package)
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let library = std::env::current_exe().unwrap().with_file_name("libmegapage_c.so");
    command.env("MEGAPAGE_C_LIBRARY", library);
    command
}

/// Runs the package's tests. `hugetlbfs` serves those that need pages from the pool.
fn run(hugetlbfs: Option<&Path>) -> Option<String> {
    if !python(&["-c", "import numpy"]).output().is_ok_and(|output| output.status.success()) {
        skip("needs python3-numpy (scripts/install-deps test)");
        return None;
    }
    let mut command = python(&["-m", "unittest", "-v", "tests.test_megapage"]);
    command.env_remove("MEGAPAGE_TEST_HUGETLBFS");
    if let Some(directory) = hugetlbfs {
        command.env("MEGAPAGE_TEST_HUGETLBFS", directory);
    }
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{said}");
    Some(said)
}

#[test]
fn arrays_survive_a_restart() {
    let Some(said) = run(None) else { return };
    assert!(said.contains("test_an_array_survives_a_restart") && said.contains("\nOK"), "{said}");
}

#[test]
fn arrays_lie_on_huge_pages() {
    let Some(_guard) = PoolGuard::reserve(PageSize::HUGE_2M, 16) else { return };
    let mounted = Mounted::new();
    let Some(said) = run(Some(&mounted.path())) else { return };
    assert!(said.trim_end().ends_with("OK"), "nothing was skipped: {said}");
}
