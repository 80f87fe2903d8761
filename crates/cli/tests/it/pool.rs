//! `megapage pool` as a user meets it: reports, messages, exit statuses.

use crate::user;

use megapage_kernel::KernelRoot;
use megapage_kernel::hugetlb::{self, PoolScope};
use megapage_report::WIDTH;
use megapage_testing::{PoolGuard, require_root, skip};
use megapage_units::PageSize;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use user::{MEGAPAGE, Said, megapage, said};

fn pool(arguments: &[&str]) -> Said {
    megapage(&[&["pool"][..], arguments].concat())
}

fn refused(arguments: &[&str], expected: &str) {
    user::refused(&[&["pool"][..], arguments].concat(), expected);
}

fn fixture(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name);
    path.to_str().unwrap().to_string()
}

fn persistent(size: PageSize) -> u64 {
    hugetlb::counts(&KernelRoot::live(), size, PoolScope::Machine).unwrap().persistent()
}

#[test]
fn bad_input_is_named_in_one_line() {
    refused(&["set", ""], "'' is not a pool; write SIZE=PAGES");
    refused(&["set", "2m"], "'2m' is not a pool");
    refused(&["set", "2m="], "'2m=' is not a pool");
    refused(&["set"], "nothing is asked for; name a pool");
    refused(&["set", "3m=1"], "'3m' is not a page size");
    refused(&["set", "64k=1"], "this kernel has no pool of 64k pages; it has");
    refused(&["set", "2m=lots"], "'lots' is not a number of pages");
    refused(&["set", "2m=3m"], "'2m=3m' is not a whole number of 2m pages");
    refused(&["set", "2m=99999999999999999"], "comes to more than 2^64 bytes");
    refused(&["set", "2m=99999999999"], "of memory");
    refused(&["set", "2m=99999999999", "--force"], "of memory");
    refused(&["set", "2m=1", "2m=2"], "two values are asked for the 2m pool");
    refused(&["set", "2m=-99999999"], "takes away more than there is");
    refused(&["set", "2m=1", "--node", "4000"], "this machine has no node 4000; it has");
    refused(&["set", "2m=4000:1"], "this machine has no node 4000");
    refused(&["set", "2m=1", "--node", "first"], "--node 'first' is not the number of a node");
    refused(&["set", "2m=0:1", "--node", "0"], "leave out --node");
    refused(&["set", "--overcommit", "2m=1", "--node", "0"], "overcommit cannot be set for a single node");
    refused(&["set", "2m=1", "--timeout", "soon"], "--timeout 'soon' is not a number of seconds");
    refused(&["set", "2m=1", "--timeout=-1"], "--timeout '-1' is not");
    refused(&["set", "2m=1", "--timeout", "99999"], "from 0 to 3600");
    refused(&["set", "2m=1", "--now"], "unexpected argument '--now'");
    refused(&["shrink"], "unrecognized subcommand 'shrink'");
    refused(&["list", "--kernel-root", "/not/there"], "/not/there/");
}

/// A request that leaves less than the safe floor, but that memory could satisfy, is refused.
/// Nothing is written.
#[test]
fn the_floor_is_kept() {
    let page = PageSize::HUGE_2M.bytes().0;
    let mut found = String::new();
    // Other programs may take or release much memory in between, so that not every attempt
    // succeeds.
    for _ in 0..10 {
        let info = megapage_kernel::meminfo(&KernelRoot::live()).unwrap();
        let (available, total) = (info.available.unwrap(), info.total.unwrap());
        // Leaves 256 MiB, half of the least floor.
        let grow = (available.0.saturating_sub(256 << 20)) / page;
        if (persistent(PageSize::HUGE_2M) + grow) * page > total.0 {
            skip("the pools hold so much that nothing between the floor and all memory can be asked for");
            return;
        }
        let said = pool(&["set", &format!("2m=+{grow}"), "--dry-run"]);
        if said.status == 2 && said.err.contains("below the safe floor") {
            return assert_eq!((said.err.lines().count(), said.out.as_str()), (1, ""), "{}", said.err);
        }
        found = said.err;
    }
    panic!("{found}");
}

#[test]
fn a_user_who_may_not_is_told_so() {
    if !require_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    fs::set_permissions(directory.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
    let copy = directory.path().join("megapage");
    // Copied by another process. A child that a parallel test forks would inherit the descriptor
    // that writes the copy, and the copy cannot be executed while that is open.
    let copied = Command::new("cp").arg(MEGAPAGE).arg(&copy).status().unwrap();
    assert!(copied.success());
    let unprivileged = |arguments: &[&str]| {
        Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "--"])
            .arg(&copy)
            .args(arguments)
            .current_dir("/")
            .output()
    };
    let Ok(output) = unprivileged(&["pool", "set", "2m=+1"]) else {
        skip("needs setpriv (util-linux)");
        return;
    };
    let said_set = said(output);
    assert_eq!(said_set.status, 2, "{}", said_set.err);
    assert!(
        said_set.err.contains("nr_hugepages: permission denied; pools are set by root"),
        "{}",
        said_set.err
    );
    assert_eq!(said_set.err.lines().count(), 1);
    // Listing is allowed, and names the processes that it could not see.
    let list = said(unprivileged(&["pool", "list"]).unwrap());
    assert_eq!(list.status, 0, "{}", list.err);
    assert!(list.out.contains("Processes that may not be read"), "{}", list.out);
    // A dry run is allowed, too.
    assert_eq!(said(unprivileged(&["pool", "set", "2m=+1", "--dry-run"]).unwrap()).status, 0);
    let image = directory.path().join("image");
    fs::create_dir(&image).unwrap();
    let root = image.to_str().unwrap();
    let persist = said(unprivileged(&["pool", "persist", "2m=1", "--apply", "--root", root]).unwrap());
    assert_eq!(persist.status, 2, "{}", persist.out);
    assert!(persist.err.contains("run as root (sudo)"), "{}", persist.err);
}

/// Tests a machine as in a container: the kernel's files exist, but even root cannot write them.
#[test]
fn a_read_only_sys_is_named() {
    if !require_root() {
        return;
    }
    let directory = hugetlb::path(PageSize::HUGE_2M, PoolScope::Machine, hugetlb::PoolFile::Pages);
    let top = directory.split('/').next().unwrap();
    let script = format!("mount -o remount,bind,ro /{top} && exec \"$0\" pool set 2m=+1");
    let output = Command::new("unshare").args(["--mount", "sh", "-c", &script, MEGAPAGE]).output();
    let Ok(output) = output else {
        skip("needs unshare (util-linux)");
        return;
    };
    let said = said(output);
    assert_eq!(said.status, 2, "{}", said.err);
    assert!(said.err.contains("nr_hugepages: read-only; set pools on the host"), "{}", said.err);
}

#[test]
fn lists_fit_the_width_and_name_every_user() {
    for name in ["two-nodes-by-hand", "linux-6.18-one-node"] {
        let said = pool(&["list", "--kernel-root", &fixture(name)]);
        assert_eq!((said.status, said.err.as_str()), (0, ""));
        assert!(said.out.lines().all(|line| line.chars().count() <= WIDTH as usize), "{}", said.out);
    }
    let said = pool(&["list", "--kernel-root", &fixture("two-nodes-by-hand")]);
    for expected in ["node 1", "qemu-system-x86", "/mnt/huge1g/vm", "200 MiB of 1 GiB", "map_0", "not known"]
    {
        assert!(said.out.contains(expected), "{expected}: {}", said.out);
    }
}

#[test]
fn json_has_its_schema_and_the_same_values() {
    let said = pool(&["list", "--json", "--kernel-root", &fixture("two-nodes-by-hand")]);
    let json: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(json["schema"], "megapage.pool-list/1");
    assert_eq!(json["pools"][0]["page_size"], "2m");
    assert_eq!(json["pools"][0]["machine"]["available"], 600);
    assert_eq!(json["pools"][0]["nodes"][1]["free"], 300);
    assert_eq!(json["pools"][0]["nodes"][1]["reserved"], serde_json::Value::Null);
    assert_eq!(json["processes"][2]["kind"], "segment");
    assert_eq!(json["limits"][1]["touched_limit_bytes"], 1 << 30);

    let said = pool(&["set", "2m=+1", "--dry-run", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&said.out).unwrap();
    assert_eq!(
        (json["schema"].as_str(), json["dry_run"].as_bool()),
        (Some("megapage.pool-set/1"), Some(true))
    );
    assert_eq!(json["steps"][0]["obtained"], serde_json::Value::Null);
}

#[test]
fn set_and_put_back() {
    let Some(guard) = PoolGuard::reserve(PageSize::HUGE_2M, 0) else { return };
    let former = guard.former().persistent();
    let dry = pool(&["set", "2MB:+7", "--dry-run"]);
    assert_eq!((dry.status, persistent(PageSize::HUGE_2M)), (0, former));
    assert!(dry.out.contains(&format!("\necho {} > /", former + 7)), "{}", dry.out);

    let grown = pool(&["set", "2MB:+7"]);
    assert_eq!((grown.status, persistent(PageSize::HUGE_2M)), (0, former + 7), "{}", grown.err);
    assert!(grown.out.contains("would stay available (safe floor"), "{}", grown.out);
    let same = pool(&["set", &format!("2m={}", former + 7), "--json"]);
    let json: serde_json::Value = serde_json::from_str(&same.out).unwrap();
    assert_eq!((same.status, json["steps"][0]["attempts"].as_u64()), (0, Some(0)));
    let node = pool(&["set", "2m=-7"]);
    assert_eq!((node.status, persistent(PageSize::HUGE_2M)), (0, former), "{}", node.err);
}

#[test]
fn set_on_a_node() {
    let Some(guard) = PoolGuard::reserve(PageSize::HUGE_2M, 0) else { return };
    if !hugetlb::nodes(&KernelRoot::live()).unwrap().contains(&0) {
        skip("needs a kernel that knows node 0");
        return;
    }
    let set = pool(&["set", "2m=+3", "--node", "0"]);
    assert_eq!(
        (set.status, persistent(PageSize::HUGE_2M)),
        (0, guard.former().persistent() + 3),
        "{}",
        set.err
    );
    assert!(set.out.contains("node 0's pool of 2m pages"), "{}", set.out);
    let back = pool(&["set", "2m=0:-3"]);
    assert_eq!(
        (back.status, persistent(PageSize::HUGE_2M)),
        (0, guard.former().persistent()),
        "{}",
        back.err
    );
}

/// Returns an image's root with GRUB's defaults, its path, and the file that megapage writes there.
fn image() -> (tempfile::TempDir, String, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    fs::create_dir_all(directory.path().join("etc/default")).unwrap();
    fs::write(directory.path().join("etc/default/grub"), "GRUB_CMDLINE_LINUX=\"\"\n").unwrap();
    let root = directory.path().to_str().unwrap().to_string();
    let cfg = directory.path().join("etc/default/grub.d/60-megapage.cfg");
    (directory, root, cfg)
}

#[test]
fn persist_writes_only_when_told_to() {
    let (_directory, root, cfg) = image();
    let arguments = ["persist", "2m=0:3", "--root", &root];
    let dry = pool(&arguments);
    assert!(
        dry.status == 0 && dry.out.contains("hugepagesz=2M hugepages=0:3") && !cfg.exists(),
        "{}",
        dry.err
    );
    assert_eq!(pool(&[&arguments[..], &["--dry-run"]].concat()).out, dry.out);
    let applied = pool(&[&arguments[..], &["--apply"]].concat());
    assert!(applied.status == 0 && applied.out.starts_with("wrote ") && cfg.exists(), "{}", applied.err);
    let again = pool(&[&arguments[..], &["--apply"]].concat());
    assert!(
        again.status == 0 && again.out.starts_with("# Every file is already as requested.\n"),
        "{}",
        again.out
    );
    assert!(
        again.out.contains("no kernel is installed there") && again.out.lines().count() == 2,
        "{}",
        again.out
    );
    let removed = pool(&["persist", "--remove", "--apply", "--json", "--root", &root]);
    let json: serde_json::Value = serde_json::from_str(&removed.out).unwrap();
    assert_eq!(json["schema"], "megapage.pool-persist/1");
    assert!(json["applied"] == true && !cfg.exists());
}

/// 123 of 128 GiB, as an article recommends it: written with a warning of the remainder, and
/// removed again.
#[test]
fn persist_warns_of_a_small_remainder_and_writes_the_line() {
    let (_directory, root, cfg) = image();
    let sizes = hugetlb::page_sizes(&KernelRoot::live()).unwrap();
    if !sizes.contains(&PageSize::HUGE_1G) {
        return skip("this processor has no pages of 1 GiB");
    }
    let line = ["1g=123", "--default-size", "1g", "--thp", "never", "--memory", "128g", "--root", &root];
    let applied = pool(&[&["persist"], &line[..], &["--apply"]].concat());
    assert_eq!(applied.status, 0, "{}", applied.err);
    assert!(applied.out.contains("# Warning: 123 GiB in pools leave 3 GiB of 128 GiB"), "{}", applied.out);
    let written = fs::read_to_string(&cfg).unwrap();
    let words = "transparent_hugepage=never default_hugepagesz=1G hugepagesz=1G hugepages=123";
    assert!(written.contains(words), "{written}");
    let json = pool(&[&["persist"], &line[..], &["--json"]].concat());
    let json: serde_json::Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(json["memory"]["left_bytes"], 3u64 << 30);
    assert_eq!(pool(&["persist", "--remove", "--apply", "--root", &root]).status, 0);
    assert!(!cfg.exists());
}

#[test]
fn persist_refuses_in_one_line() {
    let (_directory, root, _) = image();
    let refuse = |arguments: &[&str], expected: &str| {
        refused(&[&["persist"], arguments, &["--root", &root]].concat(), expected);
    };
    refuse(&["2m=2000", "--memory", "2g"], "below the 512 MiB that a machine needs to boot");
    refuse(&["2m=1", "--default-size", "3m"], "--default-size: ");
    refuse(&["2m=1", "--thp", "sometimes"], "invalid value 'sometimes'");
    refuse(&["--remove", "--thp", "never"], "cannot be used with");
    refuse(&["2m=1", "--memory", "much"], "--memory: ");
    refuse(&["2m=+1"], "a persisted value is absolute");
    refuse(&["2m"], "'2m' is not a pool");
    refuse(&["--cma", "some"], "--cma 'some' is not an amount of memory");
    refuse(&["2m=1", "--remove"], "cannot be used with");
    refuse(&["2m=1", "--loader", "lilo"], "invalid value 'lilo'");
    refuse(&["2m=1", "--apply", "--dry-run"], "cannot be used with");
    refused(&["persist", "2m=1", "--root", "/not/there"], "--root '/not/there' is not a directory");
    let empty = tempfile::tempdir().unwrap();
    let empty = empty.path().to_str().unwrap();
    refused(&["persist", "2m=0:1", "--root", empty], "no boot loader found");
}
