//! `megapage segments` as a user meets it: reports, messages, exit statuses.

use megapage_report::WIDTH;
use megapage_segment::heap::{Heap, Request, Tag};
use megapage_segment::{Options, Pool};
use megapage_units::{Bytes, PageSize};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::{Mutex, MutexGuard};

fn megapage(place: &Path, arguments: &[&str]) -> (i32, String, String) {
    let output: Output = Command::new(env!("CARGO_BIN_EXE_megapage"))
        .arg("segments")
        .args(arguments)
        .arg("--directory")
        .arg(place)
        .output()
        .unwrap();
    let text = |bytes| String::from_utf8(bytes).unwrap();
    (output.status.code().expect("not killed"), text(output.stdout), text(output.stderr))
}

/// Lock by which one test runs at a time. A process that a test starts holds the locks of other
/// tests until it executes its program.
static ALONE: Mutex<()> = Mutex::new(());

fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

/// Returns a directory with a pool of two segments, of names that no other test uses. It is removed
/// when the first value is dropped.
fn place() -> (tempfile::TempDir, PathBuf, Pool) {
    let tree = tempfile::tempdir().unwrap();
    let parent = std::fs::canonicalize(tree.path()).unwrap();
    let pool = Pool::open_in(&parent, &"cli-test".parse().unwrap(), PageSize::HUGE_2M).unwrap();
    for name in ["cli-one", "cli-two"] {
        let heap = Heap::format(pool.open_segment(&options(name)).unwrap()).unwrap();
        heap.allocate(Request::new(1000, Tag(1))).unwrap();
    }
    (tree, parent, pool)
}

fn options(name: &str) -> Options {
    Options::new(name.parse().unwrap(), Bytes::mib(4)).reuse()
}

#[test]
fn segments_are_listed_and_shown() {
    let _alone = alone();
    let (_tree, parent, pool) = place();
    let (status, text, _) = megapage(&parent, &["list"]);
    assert_eq!(status, 0);
    assert!(text.lines().all(|line| line.chars().count() <= usize::from(WIDTH)), "{text}");
    let row = text.lines().find(|line| line.contains("cli-one")).unwrap();
    let words: Vec<&str> = row.split_whitespace().collect();
    assert_eq!((words[0], words[3], words[4], words[6]), ("cli-test", "base", "2", "1"), "{row}");
    assert!(row.ends_with("kept"), "{row}");
    let (status, text, _) = megapage(&parent, &["list", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, json["schema"].as_str()), (0, Some("megapage.segments-list/1")));
    let ours = json["segments"].as_array().unwrap().iter().filter(|one| one["application"] == "cli-test");
    assert_eq!(ours.count(), 2);
    let _open = pool.open_segment(&options("cli-two")).unwrap();
    let (status, text, _) = megapage(&parent, &["show", "cli-test/cli-two"]);
    assert_eq!(status, 0);
    assert!(text.contains("2 of 2m, at most 2") && text.contains("one file, mode 0600"), "{text}");
    let (status, text, _) = megapage(&parent, &["show", "cli-one", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, json["schema"].as_str()), (0, Some("megapage.segments-show/1")));
    assert_eq!(json["shape"]["dirty_pages"], 1);
}

#[test]
fn segments_are_removed_unless_they_are_open() {
    let _alone = alone();
    let (_tree, parent, pool) = place();
    let path = pool.path().join("cli-one");
    let (status, text, _) = megapage(&parent, &["remove", "cli-one", "--dry-run"]);
    assert_eq!((status, text), (0, format!("rm -r -- {}\n", path.display())));
    assert!(path.exists());
    let open = pool.open_segment(&options("cli-two")).unwrap();
    let (status, text, error) = megapage(&parent, &["remove", "cli-one", "cli-two"]);
    assert_eq!(status, 1, "{text}{error}");
    assert!(text.contains("removed, ") && !path.exists(), "{text}");
    assert!(error.contains("cli-two is in use by") && error.lines().count() == 1, "{error}");
    let (status, text, error) = megapage(&parent, &["remove", "cli-two", "--dry-run"]);
    assert!(status == 2 && error.contains("is in use by"), "{text}{error}");
    drop(open);
    let (status, text, _) = megapage(&parent, &["remove", "cli-two", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, json["schema"].as_str()), (0, Some("megapage.segments-remove/1")));
    assert!(json["segments"][0]["memory_bytes"].as_u64().unwrap() >= 4 << 20);
    assert_eq!(std::fs::read_dir(pool.path()).unwrap().count(), 0);
}

#[test]
fn segments_are_verified() {
    let _alone = alone();
    let (_tree, parent, pool) = place();
    let (status, text, _) = megapage(&parent, &["verify", "cli-one", "cli-two"]);
    assert_eq!(status, 0, "{text}");
    assert!(text.contains("sound\n  1 blocks of 1000 B"), "{text}");
    let file = std::fs::File::options().write(true).open(pool.path().join("cli-one/pages")).unwrap();
    // The heap's header, behind the segment's header and the states of the pages.
    std::os::unix::fs::FileExt::write_all_at(&file, b"oops", 12288 + 8).unwrap();
    let (status, text, _) = megapage(&parent, &["verify", "cli-one", "cli-two"]);
    assert_eq!(status, 1);
    assert!(text.contains("cli-one: not sound\n  the heap is damaged at offset 0x3000"), "{text}");
    let _open = pool.open_segment(&options("cli-two")).unwrap();
    let (status, text, _) = megapage(&parent, &["verify", "cli-two", "--json"]);
    let json: serde_json::Value = serde_json::from_str(&text).unwrap();
    assert_eq!((status, json["schema"].as_str()), (1, Some("megapage.segments-verify/1")));
    assert_eq!(
        (&json["segments"][0]["in_use"], &json["segments"][0]["sound"]),
        (&true.into(), &false.into())
    );
}

#[test]
fn bad_input_is_named_in_one_line() {
    let _alone = alone();
    let (_tree, parent, _) = place();
    let refused = |arguments: &[&str], expected: &str| {
        let (status, out, error) = megapage(&parent, arguments);
        assert_eq!((status, out.as_str()), (2, ""), "{arguments:?}: {error}");
        assert!(error.starts_with("megapage: ") && error.contains(expected), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    };
    refused(&["show", "cli-three"], "'cli-three' is no segment; see megapage segments list");
    refused(&["remove", "cli-one", "cli-three"], "'cli-three' is no segment");
    refused(&["verify", "cli-three"], "'cli-three' is no segment");
    refused(&["remove"], "required arguments were not provided");
    refused(&["list", "--directory", "/nonexistent"], "/nonexistent: opening: No such file");
    let (status, text, _) = megapage(&parent, &["show", "cli-one"]);
    assert!(status == 0 && text.contains("cli-test/cli-one"), "nothing was removed");
}
