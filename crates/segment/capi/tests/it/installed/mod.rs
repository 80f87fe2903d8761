//! The files of `make install`, in a directory of the test.

#![allow(dead_code, reason = "each test file uses its part")]

use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

pub fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../..").canonicalize().unwrap()
}

/// An installed library.
pub struct Installed(tempfile::TempDir);

impl Installed {
    pub fn new() -> Installed {
        let tree = tempfile::tempdir().unwrap();
        let prefix = fs::canonicalize(tree.path()).unwrap();
        for directory in ["lib/pkgconfig", "include", "pool"] {
            fs::create_dir_all(prefix.join(directory)).unwrap();
        }
        // The library that was built with this test.
        let built = std::env::current_exe().unwrap().with_file_name("libmegapage_c.so");
        symlink(&built, prefix.join("lib/libmegapage_c.so.0")).unwrap();
        symlink("libmegapage_c.so.0", prefix.join("lib/libmegapage_c.so")).unwrap();
        symlink(root().join("include/megapage.h"), prefix.join("include/megapage.h")).unwrap();
        let template = fs::read_to_string(root().join("dist/megapage/megapage.pc.in")).unwrap();
        let filled = template
            .replace("@PREFIX@", prefix.to_str().unwrap())
            .replace("@LIBDIR@", prefix.join("lib").to_str().unwrap())
            .replace("@VERSION@", env!("CARGO_PKG_VERSION"));
        fs::write(prefix.join("lib/pkgconfig/megapage.pc"), filled).unwrap();
        Installed(tree)
    }

    pub fn path(&self) -> PathBuf {
        fs::canonicalize(self.0.path()).unwrap()
    }

    fn flags(&self) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.args(["--cflags", "--libs", "megapage"]);
        let printed = done(command.env("PKG_CONFIG_PATH", self.path().join("lib/pkgconfig")));
        printed.split_whitespace().map(str::to_string).collect()
    }

    pub fn compile(&self, compiler: &str, arguments: &[&str], source: &str) -> PathBuf {
        let stem = Path::new(source).file_stem().unwrap().to_str().unwrap();
        let program = self.path().join(format!("{compiler}-{stem}"));
        let mut command = Command::new(compiler);
        command.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1"]).args(arguments);
        command.arg(root().join(source)).args(self.flags()).arg("-o").arg(&program);
        done(&mut command);
        program
    }

    pub fn run(&self, program: &Path, arguments: &[PathBuf]) -> String {
        done(Command::new(program).args(arguments).env("LD_LIBRARY_PATH", self.path().join("lib")))
    }
}

/// Returns the output of a command. Panics if the command fails.
pub fn done(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {said}", output.status);
    String::from_utf8(output.stdout).unwrap()
}
