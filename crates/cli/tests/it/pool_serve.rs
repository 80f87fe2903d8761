//! `megapage pool serve` as its clients meet it: honest ones, dead ones, and lying ones.

use crate::broker_support;

use broker_support::{Broker, USERS, place, serve};
use megapage_kernel::descriptors::MOST_DESCRIPTORS;
use megapage_kernel::hugetlb::{PoolFile, PoolScope, counts};
use megapage_kernel::{KernelRoot, Populate, SharedMapping};
use megapage_memory::stock::wire::{Request, Verdict};
use megapage_memory::stock::{TakeError, ask, connect, take};
use megapage_testing::{PoolGuard, assert_refused, skip};
use megapage_units::{HUGE_2M, PageSize};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

const SIZE: PageSize = PageSize::HUGE_2M;
/// A client of any user. It takes extents, checks that they are zero, fills them, reports, and
/// waits for its end. `keep`: leaves the file, and a mapping of it, to a child that outlives it.
/// `punch`: gives its pages back, and requests more. `pass`: tries to pass a descriptor. `loop`:
/// takes and fills in one process after the other, without end.
const CLIENT: &str = r#"
import mmap, os, socket, struct, sys, time
path, pages, how = sys.argv[1], int(sys.argv[2]), sys.argv[3]
mark = os.getuid() & 0xff | 1
def take():
    s = socket.socket(socket.AF_UNIX)
    s.settimeout(20)
    s.connect(path)
    s.sendall(b"MPQ1" + bytes([1, 0, 0, 0]) + struct.pack("<QQ", 2 << 20, pages))
    data, fds, _, _ = socket.recv_fds(s, 40, 16)
    if len(data) < 40:
        raise OSError("closed")
    s.close()
    return data[4], fds
def use(fds):
    maps = []
    for fd in fds:
        m = mmap.mmap(fd, os.fstat(fd).st_size)
        os.close(fd)
        if m[:].strip(b"\0"):
            print("FOREIGN BYTES", flush=True)
            sys.exit(7)
        m[:] = bytes([mark]) * len(m)
        maps.append(m)
    return maps
if how == "pass":
    s = socket.socket(socket.AF_UNIX)
    s.connect(path)
    try:
        socket.send_fds(s, [b"x"], [1])
        print("passed", flush=True)
    except PermissionError:
        print("refused", flush=True)
    sys.exit(0)
if how == "loop":
    while True:
        child = os.fork()
        if child == 0:
            try:
                use(take()[1])
            except OSError:
                time.sleep(0.002)
            os._exit(0)
        os.waitpid(child, 0)
verdict, fds = take()
kept = [os.dup(fd) for fd in fds]
maps = use(fds)
print("verdict", verdict, "extents", len(maps), flush=True)
if how == "keep" and os.fork() == 0:
    print("keeps", flush=True)
    sys.stdin.read()
    # The pages may have another holder: this sees its own data, or nothing. A hole reads as zero.
    seen = set(os.pread(kept[0], 2 << 20, 0))
    print("kept", "own" if seen <= {0, mark} else "FOREIGN", flush=True)
    os._exit(0)
if how == "punch":
    for m in maps:
        m.madvise(9)
    print("again", take()[0], flush=True)
sys.stdin.read()
print("still", "own" if all(set(m[:]) == {mark} for m in maps) else "LOST", flush=True)
"#;

fn python() -> bool {
    let found = Command::new("python3").args(["-c", "import socket; socket.recv_fds"]).output();
    let found = found.is_ok_and(|output| output.status.success());
    if !found {
        skip("needs python3 (3.9 or later)");
    }
    found
}

/// A client as user `uid`, killed when this is dropped.
struct Client {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Client {
    fn start(uid: u32, broker: &Path, pages: u64, how: &str) -> Client {
        let mut child = Command::new("python3")
            .args(["-c", CLIENT, broker.to_str().unwrap(), &pages.to_string(), how])
            .current_dir("/")
            .gid(uid)
            .uid(uid)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Client { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_string()
    }

    fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        self.kill();
    }
}

#[test]
fn pages_are_handed_out_zeroed_and_come_back_with_their_process() {
    let Some(_pool) = PoolGuard::reserve(SIZE, 8) else { return };
    if !python() {
        return;
    }
    let (_tree, path) = place();
    let broker = Broker::start(&path, &["--stock", "4", "--extent", "2"]);
    let status = broker.full();
    assert_eq!((status["page_bytes"].as_u64(), status["extent_pages"].as_u64()), (Some(2 << 20), Some(2)));
    let granted = take(&path, SIZE, 3, false).unwrap();
    assert_eq!((granted.count, granted.bytes), (1, 4 << 20), "whole extents, no more than asked for");
    let mapping = SharedMapping::reserve(4 << 20, HUGE_2M).unwrap();
    mapping
        .append(
            &granted.extents[0].as_ref().unwrap().try_clone().unwrap().into(),
            0,
            4 << 20,
            None,
            Populate::All,
        )
        .unwrap();
    assert!(mapping.words(0, (4 << 20) / 8).unwrap().iter().all(|word| word.load(Relaxed) == 0));
    broker.full();

    let mut client = Client::start(USERS[0], &path, 100, "wait");
    assert_eq!(client.line(), "verdict 0 extents 2");
    let status = broker.wait("it has memory", |status| status["holders"].as_array().unwrap().len() == 2);
    let holder = status["holders"].as_array().unwrap().iter().find(|one| one["uid"] == USERS[0]).unwrap();
    assert_eq!((holder["extents"].as_u64(), holder["bytes"].as_u64()), (Some(2), Some(8 << 20)));
    client.kill();
    let status = broker.wait("it has none", |status| status["holders"].as_array().unwrap().len() == 1);
    assert_eq!(status["ended"], 2);
    broker.full();
    // Memory of this process stays when the broker ends.
    mapping.words(0, 1).unwrap()[0].store(42, Relaxed);
    assert_eq!(broker.stop(), Some(0));
    assert!(!path.exists());
    assert_eq!(mapping.words(0, 1).unwrap()[0].load(Relaxed), 42);
    assert!(matches!(take(&path, SIZE, 1, false), Err(TakeError::Io(_))));
}

#[test]
fn one_user_never_sees_what_another_wrote() {
    let Some(_pool) = PoolGuard::reserve(SIZE, 16) else { return };
    if !python() {
        return;
    }
    let (_tree, path) = place();
    let arguments = ["--stock", "4", "--extent", "1", "--rate", "64g"];
    let mut broker = Broker::start(&path, &arguments);
    for round in 0..8u64 {
        let mut clients: Vec<Client> =
            USERS.iter().map(|uid| Client::start(*uid, &path, 2, "loop")).collect();
        broker.wait("both are served", |status| status["handed_out"].as_u64() >= Some(4 + round));
        if round % 2 == 1 {
            broker.kill();
            broker = Broker::start(&path, &arguments);
        }
        // Kills the clients, and all processes that they have started.
        for user in USERS {
            Command::new("sh").args(["-c", "kill -9 -1"]).uid(user).status().unwrap();
        }
        clients.iter_mut().for_each(Client::kill);
        for client in &mut clients {
            let mut said = String::new();
            client.lines.read_to_string(&mut said).unwrap();
            assert_eq!(said, "", "round {round}");
        }
    }
    // A child keeps a mapping after the end of the process that got it, while another user takes
    // all pages.
    broker.full();
    let mut keeper = Client::start(USERS[0], &path, 4, "keep");
    assert!(keeper.line().starts_with("verdict 0"));
    assert_eq!(keeper.line(), "keeps");
    let input = keeper.child.stdin.take();
    keeper.kill();
    broker.wait("it is over", |status| status["holders"].as_array().unwrap().is_empty());
    broker.full();
    let mut other = Client::start(USERS[1], &path, 4, "wait");
    assert!(other.line().starts_with("verdict 0"), "and what it got was zero");
    drop(input);
    assert_eq!(keeper.line(), "kept own");
}

#[test]
fn quotas_hold_and_who_is_not_named_is_refused() {
    let Some(_pool) = PoolGuard::reserve(SIZE, 8) else { return };
    if !python() {
        return;
    }
    let (_tree, path) = place();
    let broker = Broker::start(&path, &["--stock", "4", "--extent", "1", "--quota-per-uid", "4m"]);
    broker.full();
    let mut first = Client::start(USERS[0], &path, 9, "wait");
    assert_eq!(first.line(), "verdict 0 extents 2");
    let mut second = Client::start(USERS[0], &path, 1, "wait");
    assert_eq!(second.line(), "verdict 5 extents 0");
    let mut other = Client::start(USERS[1], &path, 1, "punch");
    assert_eq!(other.line(), "verdict 0 extents 1");
    assert_eq!(other.line(), "again 0");
    drop(other);
    broker.wait("it has none", |status| status["holders"].as_array().unwrap().len() == 1);
    broker.full();
    // Pages that were given back can be touched again: they still count.
    let mut other = Client::start(USERS[1], &path, 2, "punch");
    assert_eq!(other.line(), "verdict 0 extents 2");
    assert_eq!(other.line(), "again 5");
    drop(broker);
    drop((first, second, other));
    let named = USERS[0].to_string();
    let broker = Broker::start(&path, &["--stock", "4", "--extent", "1", "--allow-user", &named]);
    broker.full();
    let mut first = Client::start(USERS[0], &path, 1, "wait");
    assert_eq!(first.line(), "verdict 0 extents 1");
    let mut other = Client::start(USERS[1], &path, 1, "wait");
    assert_eq!(other.line(), "verdict 2 extents 0");
    let wrong = take(&path, PageSize::HUGE_1G, 1, false).unwrap_err().to_string();
    assert_eq!(wrong, "the broker has pages of 2048 KiB");
    assert_eq!(broker.status().unwrap()["refused"], serde_json::json!({"denied": 1, "other-size": 1}));
}

#[test]
fn to_say_that_it_has_executed_gives_no_process_twice_its_quota() {
    let Some(_pool) = PoolGuard::reserve(SIZE, 8) else { return };
    let (_tree, path) = place();
    let broker = Broker::start(&path, &["--stock", "4", "--extent", "1", "--quota-per-uid", "4m"]);
    broker.full();
    let own = take(&path, SIZE, 2, false).unwrap();
    assert_eq!(own.count, 2);
    broker.full();
    for fresh in [false, true, true] {
        let refused = take(&path, SIZE, 1, fresh).unwrap_err();
        assert!(
            matches!(&refused, TakeError::Refused(answer) if answer.verdict == Verdict::Quota),
            "{refused}"
        );
    }
    assert_eq!(broker.status().unwrap()["holders"][0]["extents"], 2);
}

#[test]
fn clients_that_lie_hang_or_flood_are_outlived() {
    let Some(_pool) = PoolGuard::reserve(SIZE, 4) else { return };
    let (_tree, path) = place();
    let broker = Broker::start(&path, &["--stock", "2", "--extent", "1"]);
    broker.full();
    let mut state = 88_172_645_463_325_252u64;
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let mut silent = Vec::new();
    for round in 0..600 {
        let mut stream = UnixStream::connect(&path).unwrap();
        let length = (random() % 80) as usize;
        let mut bytes: Vec<u8> = (0..length).map(|_| random() as u8).collect();
        if round % 3 == 0 {
            // Bytes that resemble a request.
            let near = [b"MPQ1".to_vec(), vec![random() as u8 % 3, random() as u8 % 3, 0, 0], bytes.clone()];
            bytes = near.concat();
        }
        // The broker may have hung up already.
        let _ = stream.write_all(&bytes);
        match round % 4 {
            0 => silent.push(stream),
            1 => {
                stream.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
                let _ = stream.read(&mut [0; 100]);
            }
            _ => drop(stream),
        }
    }
    let status = broker.wait("it answers still", |status| status["dropped"].as_u64() > Some(0));
    assert!(status["refused"]["malformed"].as_u64() > Some(0), "{status}");
    // This process made all requests, and may hold extents that it never received. No other process
    // holds any.
    assert!(status["holders"].as_array().unwrap().iter().all(|holder| holder["processes"] == 1));
    drop(silent);
    assert_eq!(broker.stop(), Some(0));
}

#[test]
fn nobody_passes_descriptors_to_a_broker() {
    let Some(_pool) = PoolGuard::reserve(SIZE, 4) else { return };
    if !python() {
        return;
    }
    let (_tree, path) = place();
    let broker = Broker::start(&path, &["--stock", "1", "--extent", "1"]);
    // Closing a passed descriptor could take as long as its sender wishes.
    let mut client = Client::start(USERS[0], &path, 1, "pass");
    assert_eq!(client.line(), "refused");
    broker.full();
}

#[test]
fn processes_that_a_broker_has_no_numbers_for_are_told_apart() {
    let Some(_pool) = PoolGuard::reserve(SIZE, 16) else { return };
    let apart = ["--pid", "--fork", "--kill-child"];
    let can = Command::new("unshare").args(apart).arg("true").status().is_ok_and(|status| status.success());
    if !can {
        skip("needs unshare(1), and to be allowed PID namespaces");
        return;
    }
    if !python() {
        return;
    }
    let (_tree, path) = place();
    let mut command = Command::new("unshare");
    command.args(apart).arg(env!("CARGO_BIN_EXE_megapage")).args(["pool", "serve", "--mode", "0666"]);
    command.args(["--stock", "4", "--extent", "1", "--socket", path.to_str().unwrap()]);
    let child = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut broker = Broker { child, path: path.clone() };
    broker.full();
    // Two processes of one user. In the broker's PID namespace, both have the number 0.
    let mut first = Client::start(USERS[0], &path, 1, "wait");
    assert_eq!(first.line(), "verdict 0 extents 1");
    let mut second = Client::start(USERS[0], &path, 1, "wait");
    assert_eq!(second.line(), "verdict 0 extents 1");
    let held = |status: &Value, count: u64| {
        let ours = |one: &&Value| one["uid"] == USERS[0];
        status["holders"].as_array().unwrap().iter().find(ours).map(|one| one["processes"].as_u64())
            == Some(Some(count))
    };
    broker.wait("both are known", |status| held(status, 2));
    first.kill();
    broker.wait("one is left", |status| held(status, 1));
    drop(second.child.stdin.take());
    assert_eq!(second.line(), "still own");
    // unshare(1) reacts to no other signal, and takes the broker with it.
    broker.kill();
}

#[test]
fn a_burst_of_honest_clients_is_answered() {
    let Some(_pool) = PoolGuard::reserve(SIZE, 4) else { return };
    let (_tree, path) = place();
    let broker = Broker::start(&path, &["--stock", "1", "--extent", "1"]);
    broker.full();
    let clients: Vec<_> = (0..48)
        .map(|_| {
            let path = path.clone();
            // Each connects first, and asks only later.
            std::thread::spawn(move || {
                let stream = connect(&path).unwrap();
                std::thread::sleep(Duration::from_millis(5));
                ask(&stream, Request::Status, &mut [const { None }; MOST_DESCRIPTORS])
                    .map(|answer| answer.verdict)
            })
        })
        .collect();
    for client in clients {
        match client.join().unwrap() {
            Ok(verdict) => assert_eq!(verdict, Verdict::Done),
            // The machine was too busy for an answer; the broker dropped no client.
            Err(error) => assert!(
                [std::io::ErrorKind::WouldBlock, std::io::ErrorKind::TimedOut].contains(&error.kind()),
                "{error}"
            ),
        }
    }
}

fn persistent() -> u64 {
    counts(&KernelRoot::live(), SIZE, PoolScope::Machine).unwrap().persistent()
}

#[test]
fn the_pool_is_grown_and_put_back_also_after_a_kill() {
    let Some(_pool) = PoolGuard::reserve(SIZE, 0) else { return };
    let (_tree, path) = place();
    let before = persistent();
    let arguments = ["--stock", "4", "--extent", "4", "--keep", "--grow", "6"];
    let mut broker = Broker::start(&path, &arguments);
    assert_eq!(broker.full()["added_pages"], 6);
    assert_eq!(persistent(), before + 6);
    broker.kill();
    assert_eq!(persistent(), before + 6, "no broker was there to put it back");
    let broker = Broker::start(&path, &["--stock", "4", "--extent", "4", "--keep", "--grow", "8"]);
    assert_eq!(broker.full()["added_pages"], 8, "what the former added counts");
    assert_eq!(persistent(), before + 8);
    assert_eq!(broker.stop(), Some(0));
    assert_eq!(persistent(), before);
    assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 0, "no socket and no note is left");
}

#[test]
fn tricks_with_the_path_and_wrong_figures_are_refused() {
    let (_tree, path) = place();
    let parent = path.parent().unwrap();
    let name = |path: &Path| path.to_str().unwrap().to_string();
    std::os::unix::fs::symlink(parent, parent.join("link")).unwrap();
    fs::create_dir(parent.join("open")).unwrap();
    fs::set_permissions(parent.join("open"), fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(parent.join("file"), "kept").unwrap();
    for (socket, what) in [
        (name(&parent.join("link/broker")), "symbolic link"),
        (name(&parent.join("open/broker")), "written to by others"),
        (name(&parent.join("file")), "no socket"),
        (name(&parent.join("no/such/broker")), "No such file"),
    ] {
        assert_refused(&serve(&["--socket", &socket]).output().unwrap(), 2, what);
    }
    assert_eq!(fs::read_to_string(parent.join("file")).unwrap(), "kept");
    let socket = name(&path);
    for (arguments, what) in [
        (&["--stock", "15"][..], "a multiple of the 16 pages"),
        (&["--stock", "4", "--extent", "0"], "1 to 512"),
        (&["--stock", "0"], "multiple"),
        (&["--rate", "5k"], "at least 1m"),
        (&["--quota-per-uid", "2m"], "an extent is"),
        (&["--quota-per-uid", "much"], "or none"),
        (&["--mode", "999"], "octal"),
        (&["--size", "4k"], "2m or 1g"),
        (&["--allow-user", "no-such-user"], "there is no such user"),
        (&["--allow-group", "no-such-group"], "there is no such group"),
    ] {
        assert_refused(&serve(&[&["--socket", &socket], arguments].concat()).output().unwrap(), 2, what);
    }
    let stock = |patience: &str| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_megapage"));
        command.env("MEGAPAGE_POOL_PATIENCE_MS", patience).args(["pool", "stock", &socket]).output().unwrap()
    };
    assert_refused(&stock("60000"), 2, "'megapage pool serve' starts one");
    assert_refused(&stock("soon"), 2, "MEGAPAGE_POOL_PATIENCE_MS=soon: give a number of milliseconds");
}

#[test]
fn a_dry_run_changes_nothing_and_a_second_broker_is_refused() {
    let Some(_pool) = PoolGuard::reserve(SIZE, 2) else { return };
    let (_tree, path) = place();
    let socket = path.to_str().unwrap();
    let output = serve(&["--socket", socket, "--keep", "--grow", "3", "--dry-run"])
        .stdout(Stdio::piped())
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let file = megapage_kernel::hugetlb::path(SIZE, PoolScope::Machine, PoolFile::Pages);
    let line = format!("echo {} > /{file}", persistent() + 3);
    assert!(output.status.success() && text.lines().any(|it| it == line), "{text}");
    assert!(!path.exists());
    let broker = Broker::start(&path, &["--stock", "1", "--extent", "1"]);
    assert_refused(&serve(&["--socket", socket]).output().unwrap(), 2, "another service answers there");
    let output =
        Command::new(env!("CARGO_BIN_EXE_megapage")).args(["pool", "stock", socket]).output().unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    assert!(text.contains("1 pages of 2") && text.lines().all(|line| line.chars().count() <= 100), "{text}");
    drop(broker);
}
