//! The C and the C++ example: compiled as their users compile them, and run twice. The first run builds, the second finds.

use megapage_testing::PoolGuard;
use megapage_units::PageSize;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// What `make install` makes, in a directory of the test's own.
struct Installed(tempfile::TempDir);

impl Installed {
    fn new() -> Installed {
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
            .replace("@VERSION@", env!("CARGO_PKG_VERSION"));
        fs::write(prefix.join("lib/pkgconfig/megapage.pc"), filled).unwrap();
        Installed(tree)
    }

    fn path(&self) -> PathBuf {
        fs::canonicalize(self.0.path()).unwrap()
    }

    fn flags(&self) -> Vec<String> {
        let mut command = Command::new("pkg-config");
        command.args(["--cflags", "--libs", "megapage"]);
        let printed = done(command.env("PKG_CONFIG_PATH", self.path().join("lib/pkgconfig")));
        printed.split_whitespace().map(str::to_string).collect()
    }

    fn compile(&self, compiler: &str, arguments: &[&str], source: &str) -> PathBuf {
        let program = self.path().join(format!("{compiler}-example"));
        let mut command = Command::new(compiler);
        command.args(["-Wall", "-Wextra", "-Wpedantic", "-Werror", "-O1"]).args(arguments);
        command.arg(root().join(source)).args(self.flags()).arg("-o").arg(&program);
        done(&mut command);
        program
    }

    fn run(&self, program: &Path, arguments: &[PathBuf]) -> String {
        done(Command::new(program).args(arguments).env("LD_LIBRARY_PATH", self.path().join("lib")))
    }
}

/// What a command prints; fails where it fails.
fn done(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {}: {said}", output.status);
    String::from_utf8(output.stdout).unwrap()
}

const C_SAYS: &str = "4000000 bytes: 720720 has 240 divisors\n";
const CC_SAYS: &str = "huge memory survives\n";

#[test]
fn a_c_program_finds_its_table_again() {
    let installed = Installed::new();
    let program = installed.compile("cc", &["-std=c11"], "examples/restart.c");
    let pool = [installed.path().join("pool")];
    assert_eq!(installed.run(&program, &pool), format!("built {C_SAYS}"));
    assert_eq!(installed.run(&program, &pool), format!("found {C_SAYS}"));
    // The program asks for the library by the name that says with which versions it works.
    let needed = done(Command::new("readelf").arg("-d").arg(&program));
    assert!(needed.contains("[libmegapage_c.so.0]"), "{needed}");
}

#[test]
fn a_cpp_program_finds_its_words_again() {
    let installed = Installed::new();
    let program = installed.compile("c++", &["-std=c++17"], "examples/restart.cc");
    let pool = [installed.path().join("pool")];
    assert_eq!(installed.run(&program, &pool), format!("built: {CC_SAYS}"));
    assert_eq!(installed.run(&program, &pool), format!("found: {CC_SAYS}"));
}

#[test]
fn the_same_on_huge_pages() {
    let Some(_guard) = PoolGuard::reserve(PageSize::HUGE_2M, 8) else { return };
    use megapage_kernel::mounts::{mount_hugetlbfs, unmount};
    struct Mounted(PathBuf);
    impl Drop for Mounted {
        fn drop(&mut self) {
            if let Err(error) = unmount(&self.0) {
                eprintln!("{} was not unmounted: {error}", self.0.display());
            }
        }
    }
    let installed = Installed::new();
    let program = installed.compile("cc", &["-std=c11"], "examples/restart.c");
    let point = installed.path().join("pool");
    mount_hugetlbfs(&point, PageSize::HUGE_2M).unwrap();
    let _mounted = Mounted(point.clone());
    assert_eq!(installed.run(&program, std::slice::from_ref(&point)), format!("built {C_SAYS}"));
    assert_eq!(installed.run(&program, std::slice::from_ref(&point)), format!("found {C_SAYS}"));
}

#[test]
fn the_library_replaces_nothing_of_the_program() {
    let library = std::env::current_exe().unwrap().with_file_name("libmegapage_c.so");
    let symbols = done(Command::new("nm").args(["-D", "--defined-only"]).arg(library));
    let names: Vec<&str> = symbols.lines().filter_map(|line| line.split_whitespace().last()).collect();
    assert!(names.contains(&"megapage_heap_allocate"), "{names:?}");
    let others: Vec<_> = names.iter().filter(|name| !name.starts_with("megapage_")).collect();
    assert!(others.is_empty(), "{others:?}");
}
