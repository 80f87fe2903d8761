//! `megapage prime`: data files, named by path or by a process that maps them.

use crate::user;

use megapage_kernel::KernelRoot;
use megapage_kernel::smaps::read_smaps;
use megapage_testing::{require_root, skip};
use megapage_units::Pid;
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use user::{MEGAPAGE, megapage, refused, said};

const MIB: usize = 33;

/// Writes a data file on a file system with large folios. Returns `None`, after a loud skip, if
/// none of it can be huge.
fn data(name: &str) -> Option<PathBuf> {
    let path = PathBuf::from(format!("/var/tmp/megapage-{name}-{}", std::process::id()));
    let bytes: Vec<u8> = (0..MIB << 20).map(|at| (at / 4096 % 251) as u8).collect();
    fs::write(&path, bytes).unwrap();
    let outcome = primed(&[path.to_str().unwrap()]);
    if outcome[0]["obtained_bytes"] == 0 {
        let why = outcome[0]["missing"].as_str().unwrap_or_default().to_string();
        fs::remove_file(&path).unwrap();
        skip(&format!("/var/tmp: {why}"));
        return None;
    }
    Some(path)
}

fn primed(arguments: &[&str]) -> Value {
    let said = megapage(&[&["prime", "--json"], arguments].concat());
    assert!(said.status <= 1, "{}", said.err);
    let value: Value = serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"));
    assert_eq!(value["schema"], "megapage.prime/1");
    value["files"].clone()
}

/// A python3 that maps the file, reads all of it, checks it, and waits.
struct Reader(Child);

impl Reader {
    fn start(path: &str, how: &str) -> Option<Reader> {
        let script = format!(
            "import mmap, sys\n\
             f = open('{path}', 'r+b')\n\
             m = mmap.mmap(f.fileno(), 0, {how})\n\
             bad = sum(m[at] != at // 4096 % 251 for at in range(0, len(m), 4096))\n\
             print('ready', bad, flush=True)\n\
             sys.stdin.read()\n"
        );
        let spawned = Command::new("python3")
            .args(["-c", &script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let Ok(mut child) = spawned else {
            skip("needs python3");
            return None;
        };
        let mut line = String::new();
        BufReader::new(child.stdout.take().unwrap()).read_line(&mut line).unwrap();
        assert_eq!(line, "ready 0\n", "every byte is as it was written");
        Some(Reader(child))
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_data_file_is_primed_by_name_and_by_process() {
    if !require_root() {
        return;
    }
    let Some(path) = data("data") else { return };
    let name = path.to_str().unwrap();
    // Only whole blocks of 2 MiB count: the last MiB is none.
    let outcome = primed(&[name]);
    assert_eq!(outcome[0]["possible_bytes"], 32 << 20, "{outcome:#}");
    assert_eq!(outcome[0]["before_bytes"], outcome[0]["obtained_bytes"], "huge pages stay");
    let Some(reader) = Reader::start(name, "mmap.MAP_SHARED, mmap.PROT_READ") else { return };
    let pid = reader.0.id().to_string();
    let outcome = primed(&[pid.as_str()]);
    let file = outcome.as_array().unwrap().iter().find(|file| file["file"] == name);
    let file = file.unwrap_or_else(|| panic!("{outcome:#}"));
    let user = file["users"].as_array().unwrap().iter().find(|user| user["pid"] == reader.0.id()).unwrap();
    assert_eq!(
        (&user["private_writable_bytes"], user["misplaced_bytes"].as_u64()),
        (&Value::from(0), Some(0))
    );
    assert!(user["huge_bytes"].as_u64().unwrap() >= 16 << 20, "the page table: {file:#}");
    drop(reader);

    let Some(private) = Reader::start(name, "mmap.MAP_PRIVATE, mmap.PROT_READ | mmap.PROT_WRITE") else {
        return;
    };
    let said = megapage(&["prime", name]);
    assert!(said.out.contains("private and writable"), "{}", said.out);
    drop(private);
    fs::remove_file(path).unwrap();
}

/// Returns the bytes of the file that are on 2 MiB entries in a program, which maps the file as
/// usual.
fn huge_of_a_reader(path: &str) -> Option<u64> {
    let reader = Reader::start(path, "mmap.MAP_SHARED, mmap.PROT_READ")?;
    let smaps = read_smaps(&KernelRoot::live(), Pid(reader.0.id().cast_signed())).unwrap();
    let of_file = smaps.iter().filter(|mapping| mapping.name == path);
    Some(of_file.map(|mapping| mapping.file_pmd.0 + mapping.shmem_pmd.0).sum())
}

#[test]
fn what_is_told_is_what_a_program_has() {
    if !require_root() {
        return;
    }
    let overlay = Overlay::mount();
    let places = ["/var/tmp", "/dev/shm"].map(PathBuf::from).into_iter().chain(overlay.top());
    for place in places {
        let directory = tempfile::tempdir_in(place).unwrap();
        let path = directory.path().join("data");
        let bytes: Vec<u8> = (0..MIB << 20).map(|at| (at / 4096 % 251) as u8).collect();
        fs::write(&path, bytes).unwrap();
        let name = path.to_str().unwrap();
        let said = megapage(&["prime", "--json", name]);
        let Some(has) = huge_of_a_reader(name) else { return };
        let value: Value =
            serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"));
        let file = &value["files"][0];
        assert_eq!(file["obtained_bytes"], has, "{name}: {file:#}");
        assert!(file["folio_bytes"].as_u64() >= file["obtained_bytes"].as_u64(), "{name}: {file:#}");
        assert_eq!(
            said.status,
            if has == 32 << 20 { 0 } else { 1 + i32::from(has == 0) },
            "{name}: {file:#}"
        );
        assert_eq!(file["missing"].is_null(), has == 32 << 20, "{name}: {file:#}");
    }
}

/// An overlayfs whose files lie in /var/tmp.
struct Overlay(Option<tempfile::TempDir>);

impl Overlay {
    fn mount() -> Overlay {
        let tree = tempfile::tempdir_in("/var/tmp").unwrap();
        for name in ["lower", "upper", "work", "top"] {
            fs::create_dir(tree.path().join(name)).unwrap();
        }
        let of = tree.path().display();
        let options = format!("lowerdir={of}/lower,upperdir={of}/upper,workdir={of}/work");
        let top = tree.path().join("top");
        let mounted = Command::new("mount")
            .args(["-t", "overlay", "overlay", "-o", &options])
            .arg(top)
            .output()
            .unwrap();
        if !mounted.status.success() {
            skip(&format!("needs an overlayfs: {}", String::from_utf8_lossy(&mounted.stderr)));
        }
        Overlay(mounted.status.success().then_some(tree))
    }

    fn top(&self) -> Option<PathBuf> {
        self.0.as_ref().map(|tree| tree.path().join("top"))
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        if let Some(top) = self.top() {
            let _ = Command::new("umount").arg(top).status();
        }
    }
}

#[test]
fn holes_are_neither_looked_at_nor_filled() {
    let (disk, memory) =
        (tempfile::tempdir_in("/var/tmp").unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
    for place in [disk.path(), memory.path()] {
        let path = place.join("sparse");
        let file = fs::File::create(&path).unwrap();
        file.set_len(8 << 40).unwrap();
        let name = path.to_str().unwrap();
        let limited = |arguments: &[&str]| {
            let mut command = Command::new("timeout");
            said(command.args(["60", MEGAPAGE, "prime"]).args(arguments).arg(name).output().unwrap())
        };
        for arguments in [&["--dry-run"][..], &[]] {
            let refused = limited(arguments);
            assert_eq!(refused.status, 2, "{refused:?}");
            assert!(refused.err.contains("it is sparse"), "{refused:?}");
        }
        // One whole block far into the file, and one page in another block.
        file.write_all_at(&vec![7; 2 << 20], 5 << 40).unwrap();
        file.write_all_at(&[7; 4096], 6 << 40).unwrap();
        let before = file.metadata().unwrap().blocks();
        let told = limited(&["--json"]);
        let value: Value =
            serde_json::from_str(&told.out).unwrap_or_else(|error| panic!("{error}: {told:?}"));
        assert_eq!(value["files"][0]["possible_bytes"], 2 << 20, "{value:#}");
        file.sync_all().unwrap();
        let after = file.metadata().unwrap().blocks();
        assert!(after <= before + 64, "{before} and then {after} blocks of 512 bytes in {}", place.display());
    }
}

#[test]
fn bad_input_is_one_line() {
    refused(&["prime"], "required");
    refused(&["prime", "999999999"], "no process 999999999");
    refused(&["prime", "/no/such/file"], "No such file");
    let directory = tempfile::tempdir().unwrap();
    let small = directory.path().join("small");
    fs::write(&small, "small").unwrap();
    refused(&["prime", small.to_str().unwrap()], "smaller than a huge page");
    refused(&["prime", directory.path().to_str().unwrap()], "not a regular file");
}
