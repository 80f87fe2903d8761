//! A set-user-ID program into which /etc/ld.so.preload loads the library: it runs as without it.

use crate::preloaded;

use megapage_inside::thp_is_possible;
use preloaded::{program, text};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

/// Variable that names the directory of the test, in the namespace whose /etc is a copy.
const INNER: &str = "MEGAPAGE_TEST_SECURE";
/// File that only that copy has.
const MARK: &str = "/etc/megapage-test-copy";
/// A user who is not root.
const OTHER: u32 = 65534;

#[test]
fn a_program_with_more_rights_than_its_caller_is_left_alone() {
    if let Some(place) = std::env::var_os(INNER) {
        return in_the_namespace(Path::new(&place));
    }
    if !megapage_testing::require_root() {
        return;
    }
    if !thp_is_possible() {
        return megapage_testing::skip("transparent huge pages are off");
    }
    let Some(built) = program("secure", "setuid") else { return };
    // A separate file system, which every user can reach. A file system that is mounted nosuid
    // would hide the defect.
    let place = "/mnt";
    let script = "mount -t tmpfs -o mode=755 none \"$1\" && cp -a /etc \"$1/etc\" && cp \"$2\" \"$1/program\" && \
                  cp \"$3\" \"$1/libmegapage.so\" && touch \"$1$5\" && mount --bind \"$1/etc\" /etc && \
                  exec \"$4\" secure:: --nocapture";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "sh", "-c", script, "sh"]);
    command
        .arg(place)
        .arg(built)
        .arg(preloaded::built("libmegapage.so"))
        .arg(std::env::current_exe().unwrap())
        .arg(MARK);
    let output = command.env(INNER, place).output().unwrap();
    let said = text(&output.stdout) + &text(&output.stderr);
    assert!(output.status.success() && said.contains("1 passed"), "{said}");
}

fn in_the_namespace(place: &Path) {
    assert!(Path::new(MARK).exists(), "the machine's own /etc");
    let program = place.join("program");
    fs::write("/etc/ld.so.preload", format!("{}\n", place.join("libmegapage.so").display())).unwrap();
    let says = |uid: u32, mode: u32| {
        fs::set_permissions(&program, fs::Permissions::from_mode(mode)).unwrap();
        let output = Command::new(&program).env("MEGAPAGE_HEAP", "thp").uid(uid).gid(uid).output().unwrap();
        text(&output.stdout) + &text(&output.stderr)
    };
    assert_eq!(says(0, 0o755), "loaded, variable gone, huge\n");
    assert_eq!(says(OTHER, 0o4755), "loaded, variable thp, base\n");
}
