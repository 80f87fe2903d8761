//! Two processes, one of which is killed or stopped at each step: the other one is the owner, and
//! all contents are there.

use super::*;
use crate::heap::{Depth, Heap, Request, Tag};
use crate::{Layout, Name, Options, Pool, Segment, Unlink};
use megapage_units::{Bytes, PageSize};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

const ROLE: &str = "MEGAPAGE_TEST_UPGRADE_ROLE";
const PLACE: &str = "MEGAPAGE_TEST_UPGRADE_PLACE";
const STOP: &str = "MEGAPAGE_TEST_UPGRADE_STOP";
const PATIENCE: &str = "MEGAPAGE_TEST_UPGRADE_PATIENCE_MS";
const TAG: Tag = Tag::named("upgrade/content");
const PAGE: u64 = 2 << 20;
const WORDS: usize = 100_000;

/// Stops a process of these tests once, if the environment names this step, until it is killed or
/// gets a line.
pub fn point(step: &str) {
    static STOPPED: AtomicBool = AtomicBool::new(false);
    if std::env::var_os(STOP).is_some_and(|stop| stop == step) && !STOPPED.swap(true, Ordering::SeqCst) {
        say("stopped");
        wait_for_line();
    }
}

fn say(text: &str) {
    println!("\n@ {text}");
    std::io::stdout().flush().unwrap();
}

fn wait_for_line() {
    // The end of the input is the end of the test.
    if std::io::stdin().read_line(&mut String::new()).unwrap() == 0 {
        std::process::exit(1);
    }
}

fn name(text: &str) -> Name {
    text.parse().unwrap()
}

fn pool(place: &Path) -> Pool {
    Pool::open_in(place, &name("upgrade"), PageSize::HUGE_2M).unwrap()
}

fn options(text: &str, layout: Layout, unlink: Unlink) -> Options {
    let most = Some(Bytes(4 * PAGE));
    Options { layout, unlink, most, ..Options::new(name(text), Bytes(2 * PAGE)) }
}

fn named() -> [Options; 2] {
    [
        options("single", Layout::SingleFile, Unlink::Never),
        options("pages", Layout::FilePerPage, Unlink::Never),
    ]
}

/// Makes two segments with names, one without, and one in a memory file.
fn make(place: &Path) -> Vec<Segment> {
    let pool = pool(place);
    let unlinked = options("unlinked", Layout::SingleFile, Unlink::Always);
    let all = named().into_iter().chain([unlinked]);
    let mut segments: Vec<Segment> = all.map(|options| pool.open_segment(&options).unwrap()).collect();
    let size = Bytes(2 * PAGE);
    segments.push(Segment::in_memory(name("memory"), PageSize::HUGE_2M, false, size, size).unwrap());
    segments.into_iter().map(build).collect()
}

fn content(name: &Name, at: usize) -> u64 {
    (name.as_str().len() as u64 ^ (at as u64) << 8).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1
}

fn build(segment: Segment) -> Segment {
    let heap = Heap::format(segment).unwrap();
    let root = heap.allocate(Request::new(8 * WORDS as u64, TAG)).unwrap();
    let words = heap.block(root, TAG).unwrap().words();
    let name = heap.segment().name();
    words.iter().enumerate().for_each(|(at, word)| word.store(content(name, at), Ordering::Relaxed));
    heap.set_root(Some(root)).unwrap();
    heap.into_segment()
}

/// Uses a segment as its owner does, and checks its contents.
fn is_whole(segment: Segment) -> Segment {
    let heap = Heap::open(segment).unwrap();
    heap.verify(Depth::Memory).unwrap();
    let words = heap.block(heap.root().unwrap().unwrap(), TAG).unwrap().words();
    let name = heap.segment().name();
    assert_eq!(words.len(), WORDS);
    assert!(
        words.iter().enumerate().all(|(at, word)| word.load(Ordering::Relaxed) == content(name, at)),
        "{name} is not what it was"
    );
    let more = heap.allocate(Request::new(1000, TAG).zeroed()).unwrap();
    heap.free(more).unwrap();
    heap.into_segment()
}

fn socket(place: &Path) -> PathBuf {
    place.join("upgrade")
}

/// Runs a process of these tests.
#[test]
#[ignore = "started by the other tests"]
fn process() {
    let role = std::env::var(ROLE).unwrap();
    let place = PathBuf::from(std::env::var_os(PLACE).unwrap());
    let patience = std::env::var(PATIENCE).unwrap().parse().map(Duration::from_millis).unwrap();
    let held = if role == "old" { old(&place, patience) } else { new(&place, patience) };
    wait_for_line();
    drop(held);
}

fn old(place: &Path, patience: Duration) -> Vec<Segment> {
    let segments = make(place);
    let listener = Listener::bind(&socket(place)).unwrap();
    say("ready");
    let successor = listener.wait(Duration::from_secs(60)).unwrap().expect("a successor");
    let extras = Extras { data: b"note".into(), descriptors: vec![tempfile::tempfile().unwrap().into()] };
    match listener.hand_over(successor, segments, &extras, patience) {
        Ok(done) => {
            say(&format!("gone, {}", if done.confirmed { "confirmed" } else { "unconfirmed" }));
            Vec::new()
        }
        Err(kept) => {
            let segments: Vec<Segment> = kept.segments.into_iter().map(is_whole).collect();
            say(&format!("owner of {}", segments.len()));
            segments
        }
    }
}

fn new(place: &Path, patience: Duration) -> Vec<Segment> {
    match take_over(&socket(place), patience) {
        Ok(Some(taken)) => {
            assert_eq!((&taken.extras.data[..], taken.extras.descriptors.len()), (&b"note"[..], 1));
            let segments: Vec<Segment> = taken.segments.into_iter().map(is_whole).collect();
            let how = if taken.orderly { "given" } else { "left" };
            say(&format!("owner of {}, {how}", segments.len()));
            segments
        }
        Ok(None) => {
            let open = |options| is_whole(pool(place).open_segment(&options).unwrap());
            let segments: Vec<Segment> = named().into_iter().map(open).collect();
            say(&format!("owner of {}, restarted", segments.len()));
            segments
        }
        Err(error) => {
            say(&format!("none: {error}"));
            Vec::new()
        }
    }
}

/// A process of a test, which is killed when it is dropped.
struct Process {
    child: Child,
    input: ChildStdin,
    output: BufReader<ChildStdout>,
}

impl Process {
    fn start(role: &str, place: &Path, stop: &str, patience: Duration) -> Process {
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["upgrade::tests::process", "--exact", "--ignored", "--nocapture", "--test-threads=1"])
            .env(ROLE, role)
            .env(PLACE, place)
            .env(STOP, stop)
            .env(PATIENCE, patience.as_millis().to_string())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        let mut child = child.unwrap();
        let (input, output) = (child.stdin.take().unwrap(), child.stdout.take().unwrap());
        Process { child, input, output: BufReader::new(output) }
    }

    fn says(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert_ne!(self.output.read_line(&mut line).unwrap(), 0, "the process ended by itself");
            if let Some((_, said)) = line.split_once("@ ") {
                return said.trim().to_string();
            }
        }
    }

    fn go_on(&mut self) {
        writeln!(self.input, "go on").unwrap();
    }

    fn kill(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Starts both processes, one of which stops at `step`. Returns the victim, then the other one.
fn meet(place: &Path, step: &str, patience: Duration) -> (Process, Process) {
    let mut old = Process::start("old", place, step, patience);
    assert_eq!(old.says(), "ready");
    let new = Process::start("new", place, step, patience);
    if step.starts_with("old-") { (old, new) } else { (new, old) }
}

fn place() -> (tempfile::TempDir, PathBuf) {
    let tree = tempfile::tempdir().unwrap();
    let place = std::fs::canonicalize(tree.path()).unwrap();
    (tree, place)
}

/// Checks that an ordinary start finds both segments with names, and all their contents.
fn is_found_again(place: &Path) {
    for options in named() {
        let segment = pool(place).open_segment(&options).unwrap();
        assert_eq!(segment.opened().fresh_pages, 0);
        drop(is_whole(segment));
    }
}

fn is_in_use(place: &Path) -> bool {
    let open = |options| pool(place).open_segment(&options);
    named().into_iter().all(|options| matches!(open(options), Err(SegmentError::InUse { .. })))
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_kill_at_any_step_leaves_the_other_process_the_owner() {
    for (step, verdict) in [
        ("old-accepted", "owner of 2, restarted"),
        ("old-begun", "owner of 2, restarted"),
        ("old-offered", "owner of 4, left"),
        ("old-mapped", "owner of 4, left"),
        ("old-given", "owner of 4, given"),
        ("old-taken", "owner of 4, given"),
        ("new-connected", "owner of 4"),
        ("new-begun", "owner of 4"),
        ("new-received", "owner of 4"),
        ("new-ready", "owner of 4"),
        ("new-mapped", "owner of 4"),
        ("new-given", "owner of 4"),
        ("new-adopted", "owner of 4"),
        ("new-taken", "gone, confirmed"),
    ] {
        let (_tree, place) = place();
        let (mut victim, mut other) = meet(&place, step, LONG);
        assert_eq!(victim.says(), "stopped", "{step}");
        victim.kill();
        assert_eq!(other.says(), verdict, "{step}");
        // The owner that was killed after it had taken all is found as after any kill.
        assert_eq!(is_in_use(&place), step != "new-taken", "{step}");
        other.go_on();
        other.child.wait().unwrap();
        is_found_again(&place);
    }
}

#[test]
fn without_a_kill_the_successor_is_the_owner() {
    let (_tree, place) = place();
    let (mut new, mut old) = meet(&place, "new-none", LONG);
    assert_eq!(new.says(), "owner of 4, given");
    assert_eq!(old.says(), "gone, confirmed");
    old.go_on();
    old.child.wait().unwrap();
    assert!(is_in_use(&place), "the lock has moved along");
    new.kill();
    is_found_again(&place);
}

#[test]
fn a_process_that_is_stopped_never_becomes_a_second_owner() {
    for step in [
        "old-accepted",
        "old-begun",
        "old-offered",
        "old-mapped",
        "old-given",
        "new-connected",
        "new-begun",
        "new-ready",
        "new-mapped",
        "new-given",
        "new-adopted",
    ] {
        let (_tree, place) = place();
        let (mut stopped, mut other) = meet(&place, step, Duration::from_millis(300));
        let mut said = stopped.says();
        let verdict = other.says();
        // On a slow machine it may have run out of patience before it came to this step.
        if said == "stopped" {
            stopped.go_on();
            said = stopped.says();
        }
        let owners = [&said, &verdict].iter().filter(|said| said.starts_with("owner of 4")).count();
        assert_eq!(owners, 1, "{step}: {said}; the other: {verdict}");
        assert!(is_in_use(&place), "{step}");
        drop((stopped, other));
        is_found_again(&place);
    }
}

#[test]
fn a_kill_at_a_random_moment_leaves_one_owner() {
    for round in 0..16u64 {
        let (_tree, place) = place();
        let (mut new, mut old) = meet(&place, "new-connected", LONG);
        assert_eq!(new.says(), "stopped");
        new.go_on();
        std::thread::sleep(Duration::from_micros(round / 2 * 400));
        let (victim, other) = if round % 2 == 0 { (&mut old, &mut new) } else { (&mut new, &mut old) };
        victim.kill();
        let verdict = other.says();
        // One that was killed when it had taken all has left no owner, and all that a start needs.
        let is_gone = verdict == "gone, confirmed";
        assert!(is_gone || verdict.starts_with("owner of"), "{verdict}");
        assert_eq!(is_in_use(&place), !is_gone);
        drop((new, old));
        is_found_again(&place);
    }
}

#[test]
fn without_a_predecessor_the_start_is_an_ordinary_one() {
    let (_tree, place) = place();
    let path = socket(&place);
    assert!(take_over(&path, LONG).unwrap().is_none(), "no socket");
    let listener = Listener::bind(&path).unwrap();
    // A second listener takes its place; the first one leaves it there.
    let second = Listener::bind(&path).unwrap();
    drop(listener);
    assert!(path.exists());
    assert!(second.wait(Duration::ZERO).unwrap().is_none());
    drop(second);
    assert!(!path.exists());
    // The remains of a killed process.
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(take_over(&path, LONG).unwrap().is_none(), "no process listens");
    drop(Listener::bind(&path).unwrap());
    std::fs::write(&path, "a file").unwrap();
    assert!(matches!(Listener::bind(&path), Err(SegmentError::Foreign { .. })));
    assert!(Listener::bind(Path::new("/")).is_err());
}

#[test]
fn what_is_no_successor_is_turned_away() {
    let (_tree, place) = place();
    let path = socket(&place);
    let listener = Listener::bind(&path).unwrap();
    // One that says nothing, one that says something else, one of another version.
    let silent = UnixStream::connect(&path).unwrap();
    std::thread::scope(|scope| {
        let strangers = scope.spawn(|| {
            UnixStream::connect(&path).unwrap().write_all(b"GET / HTTP/1.1\r\n\r\n").unwrap();
            let other = UnixStream::connect(&path).unwrap();
            other.set_nonblocking(true).unwrap();
            let until = std::time::Instant::now() + LONG;
            wire::send(&other, wire::Kind::Hello, b"megapage-upgrade/9", &[], until).unwrap();
            let answer = wire::receive(&other, until).unwrap();
            assert_eq!(answer.kind, wire::Kind::Refused);
            String::from_utf8(answer.payload).unwrap()
        });
        let mut waits = 0;
        while !strangers.is_finished() {
            assert!(listener.wait(Duration::from_millis(20)).unwrap().is_none());
            waits += 1;
            assert!(waits < 3000, "the strangers are not turned away");
        }
        assert!(strangers.join().unwrap().contains("another version"));
    });
    drop(silent);
}

#[test]
fn what_the_other_process_says_steers_no_terminal() {
    let (_tree, place) = place();
    let path = socket(&place);
    let hostile = "no\x1b]0;owned\x07\nroot# \u{202e}";
    // At once, and after it has taken all.
    for first in [None, Some(wire::Kind::Mapped)] {
        let listener = Listener::bind(&path).unwrap();
        let until = std::time::Instant::now() + LONG;
        let kept = std::thread::scope(|scope| {
            scope.spawn(|| {
                let other = UnixStream::connect(&path).unwrap();
                other.set_nonblocking(true).unwrap();
                wire::send(&other, wire::Kind::Hello, wire::HELLO, &[], until).unwrap();
                let wait_for = |kind| while wire::receive(&other, until).unwrap().kind != kind {};
                wait_for(wire::Kind::End);
                if let Some(kind) = first {
                    wire::send(&other, kind, &[], &[], until).unwrap();
                    wait_for(wire::Kind::Yours);
                }
                wire::send(&other, wire::Kind::Refused, hostile.as_bytes(), &[], until).unwrap();
            });
            let successor = listener.wait(LONG).unwrap().unwrap();
            listener.hand_over(successor, Vec::new(), &Extras::default(), LONG).unwrap_err()
        });
        let why = kept.error.to_string();
        assert!(why.contains(r"no\u{1b}]0;owned\u{7}\nroot# \u{202e}"), "{why}");
        assert!(!why.chars().any(megapage_units::shown::is_steering), "{why:?}");
    }
}

#[test]
fn what_cannot_be_handed_over_stays() {
    let (_tree, place) = place();
    let path = socket(&place);
    let pool = pool(&place);
    let whole =
        || pool.open_segment(&options("whole", Layout::SingleFile, Unlink::Existing)).map(build).unwrap();
    let gone =
        || pool.open_segment(&options("gone", Layout::FilePerPage, Unlink::Always)).map(build).unwrap();
    let attempt = |segments: Vec<Segment>, extras: Extras| {
        let listener = Listener::bind(&path).unwrap();
        std::thread::scope(|scope| {
            let taken = scope.spawn(|| take_over(&path, LONG).map(|taken| taken.is_some()));
            let successor = listener.wait(LONG).unwrap().unwrap();
            assert_eq!(successor.process(), std::process::id() as i32);
            let kept = listener.hand_over(successor, segments, &extras, LONG).unwrap_err();
            let refused = taken.join().unwrap().unwrap_err().to_string();
            assert!(refused.contains("the predecessor keeps its segments"), "{refused}");
            let count = kept.segments.len();
            kept.segments.into_iter().for_each(|segment| drop(is_whole(segment)));
            (count, kept.error.to_string())
        })
    };
    let (count, why) = attempt(vec![whole(), gone()], Extras::default());
    assert!(count == 2 && why.contains("neither names nor descriptors"), "{why}");
    let much = Extras { data: vec![0; wire::MOST_PAYLOAD + 1], ..Extras::default() };
    let (count, why) = attempt(vec![whole()], much);
    assert!(count == 1 && why.contains("at most 65536 bytes"), "{why}");
}
