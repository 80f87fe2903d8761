//! Tests of a reporter as the loop uses it, asked over its socket.

use megapage_daemon::client::{self, ClientError};
use megapage_daemon::{Listen, MetricsConfig, Mode, Pass, Reporter, Times};
use megapage_kernel::KernelRoot;
use megapage_kernel::socket::listen_at;
use megapage_snapshot::{Machine, Snapshot};
use megapage_testing::wait_for;
use megapage_units::Bytes;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

fn config(directory: &Path) -> MetricsConfig {
    MetricsConfig { socket: directory.join("run/s"), ..MetricsConfig::default() }
}

fn start(config: &MetricsConfig) -> Reporter {
    Reporter::start(&KernelRoot::live(), config).unwrap()
}

fn refused(config: &MetricsConfig) -> String {
    Reporter::start(&KernelRoot::live(), config).unwrap_err().to_string()
}

fn pass(number: u64) -> Pass {
    let machine = Machine::default();
    Pass {
        number,
        at: Duration::from_secs(number),
        policy: "ingens",
        dry_run: true,
        snapshot: Arc::new(Snapshot {
            taken: Duration::from_secs(number),
            machine,
            sampling: None,
            processes: Vec::new(),
            missed: Vec::new(),
        }),
        done: Vec::new(),
        left: 0,
        backed_off: 0,
        executor: None,
        costs: None,
        short: false,
        times: Times::default(),
        huge: Bytes::ZERO,
        watched: 0,
        skipped: 0,
    }
}

#[test]
fn passes_are_told_until_the_reporter_goes() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path());
    let mut reporter = start(&config);
    assert_eq!(fs::metadata(&config.socket).unwrap().permissions().mode() & 0o777, 0o600);
    let before = client::status(&config.socket).unwrap();
    assert_eq!((before.passes, before.last_pass, before.pid), (0, None, std::process::id()));
    reporter.note(&pass(1));
    reporter.note(&pass(2));
    let status = client::status(&config.socket).unwrap();
    assert_eq!((status.passes, status.policy.as_str(), status.dry_run), (2, "ingens", true));
    assert!(status.resident_bytes.unwrap() > 0);
    assert_eq!(client::decisions(&config.socket, 0, 5).unwrap().newest, 0);
    let metrics = client::get(&config.socket, "/metrics").unwrap();
    assert!(metrics.contains("\nmegapage_passes_total 2\n"), "{metrics}");
    // A client that stays connected does not prevent the end.
    let _hanging = UnixStream::connect(&config.socket).unwrap();
    drop(reporter);
    assert!(!config.socket.exists());
    let gone = client::status(&config.socket).unwrap_err();
    assert!(matches!(gone, ClientError::NoDaemon { .. }), "{gone}");
}

#[test]
fn a_socket_that_was_left_behind_is_replaced_and_no_other() {
    let directory = tempfile::tempdir().unwrap();
    let config = config(directory.path());
    fs::create_dir(directory.path().join("run")).unwrap();
    drop(listen_at(&config.socket, 0o600, None, 1).unwrap());
    assert!(config.socket.exists(), "left behind");
    let reporter = start(&config);
    let what = refused(&config);
    assert!(what.contains("another daemon answers there: stop that one, or give another path"), "{what}");
    assert!(client::status(&config.socket).is_ok(), "the first is as it was");
    // Another process's socket is not ours to remove.
    fs::remove_file(&config.socket).unwrap();
    let other = listen_at(&config.socket, 0o600, None, 1).unwrap();
    drop(reporter);
    assert!(config.socket.exists());
    drop(other);
    fs::remove_file(&config.socket).unwrap();
    fs::write(&config.socket, "precious").unwrap();
    assert!(refused(&config).contains("is there and no socket: remove it, or give another path"));
    assert_eq!(fs::read_to_string(&config.socket).unwrap(), "precious");
}

#[test]
fn what_cannot_be_opened_is_told_in_one_line() {
    let directory = tempfile::tempdir().unwrap();
    let of =
        |socket: &str| MetricsConfig { socket: directory.path().join(socket), ..MetricsConfig::default() };
    let mut cases = vec![
        (of("a/b/s"), "give a path in a directory that the daemon may write to"),
        (MetricsConfig { socket: "relative".into(), ..MetricsConfig::default() }, "give an absolute path"),
        (MetricsConfig { socket_group: "no-such-group".into(), ..of("s") }, "no group 'no-such-group': give"),
        (MetricsConfig { textfile: directory.path().join("x/y.prom"), ..of("s") }, "metrics.textfile: "),
    ];
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let listen = Listen(Some(taken.local_addr().unwrap()));
    cases.push((MetricsConfig { listen, ..of("s") }, "give another port, or \"\" for none"));
    for (config, what) in cases {
        let said = refused(&config);
        assert!(said.contains(what) && !said.contains('\n'), "{said}");
        assert!(!config.socket.exists());
    }
}

#[test]
fn a_new_configuration_is_taken_or_the_old_one_stays() {
    let directory = tempfile::tempdir().unwrap();
    let first = config(directory.path());
    let mut reporter = start(&first);
    reporter.note(&pass(1));
    let wider = MetricsConfig { socket_mode: Mode(0o660), ..first.clone() };
    reporter.reload(&wider).unwrap();
    assert_eq!(fs::metadata(&first.socket).unwrap().permissions().mode() & 0o777, 0o660);
    let moved = MetricsConfig { socket: directory.path().join("t"), ..wider.clone() };
    reporter.reload(&moved).unwrap();
    assert!(!first.socket.exists());
    assert_eq!(client::status(&moved.socket).unwrap().passes, 1, "sums are kept");
    let bad = MetricsConfig { socket: directory.path().join("no/such/s"), ..moved.clone() };
    assert!(reporter.reload(&bad).is_err());
    assert_eq!(client::status(&moved.socket).unwrap().passes, 1, "the old one answers");
    let silent = MetricsConfig { socket: Default::default(), ..moved.clone() };
    reporter.reload(&silent).unwrap();
    assert!(!moved.socket.exists());
    reporter.note(&pass(2));
    reporter.reload(&moved).unwrap();
    assert_eq!(client::status(&moved.socket).unwrap().passes, 2);
}

#[test]
fn the_textfile_is_whole_and_goes_with_the_reporter() {
    let directory = tempfile::tempdir().unwrap();
    let textfile = directory.path().join("megapage.prom");
    let config =
        MetricsConfig { textfile: textfile.clone(), socket: Default::default(), ..MetricsConfig::default() };
    let mut reporter = start(&config);
    reporter.note(&pass(1));
    wait_for("the file", || textfile.exists());
    let text = fs::read_to_string(&textfile).unwrap();
    assert!(text.contains("# TYPE megapage_passes_total counter\nmegapage_passes_total "), "{text}");
    assert!(text.ends_with('\n') && !text.contains("# EOF"), "{text}");
    assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "nothing half written is left");
    assert_eq!(fs::metadata(&textfile).unwrap().permissions().mode() & 0o777, 0o644);
    drop(reporter);
    assert!(!textfile.exists());
}

#[test]
fn an_answer_that_is_none_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s");
    let listener = listen_at(&path, 0o600, None, 4).unwrap();
    listener.set_nonblocking(false).unwrap();
    let answering = std::thread::spawn(move || {
        for answer in
            ["HTTP/1.1 200 OK\r\n\r\n{}", "SSH-2.0\r\n\r\n", "HTTP/1.1 200", "HTTP/1.1 404 x\r\n\r\n"]
        {
            let (mut stream, _) = listener.accept().unwrap();
            std::io::Read::read(&mut stream, &mut [0; 4096]).unwrap();
            std::io::Write::write_all(&mut stream, answer.as_bytes()).unwrap();
        }
    });
    for what in ["missing field", "no HTTP", "ends early", "status 404"] {
        let error = client::status(&path).unwrap_err().to_string();
        assert!(error.contains(what) && error.contains("no megapage daemon of this version"), "{error}");
    }
    answering.join().unwrap();
}

/// Creates a directory that others may write to, as a collector's may be, and a file that is not
/// theirs.
fn open_directory() -> (tempfile::TempDir, std::path::PathBuf, std::path::PathBuf) {
    let tree = tempfile::tempdir().unwrap();
    let (open, victim) = (tree.path().join("open"), tree.path().join("victim"));
    fs::create_dir(&open).unwrap();
    fs::set_permissions(&open, fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(&victim, "precious").unwrap();
    fs::set_permissions(&victim, fs::Permissions::from_mode(0o600)).unwrap();
    (tree, open, victim)
}

#[test]
fn links_in_the_collectors_directory_are_not_written_through() {
    let (_tree, open, victim) = open_directory();
    let textfile = open.join("x.prom");
    let draft = open.join(format!(".x.prom.{}.new", std::process::id()));
    let config =
        MetricsConfig { socket: Default::default(), textfile: textfile.clone(), ..MetricsConfig::default() };
    for planted in [&draft, &textfile] {
        // The link is planted at the start, and again at each writing.
        std::os::unix::fs::symlink(&victim, planted).unwrap();
        let mut reporter = start(&config);
        reporter.note(&pass(1));
        wait_for("the file", || fs::symlink_metadata(&textfile).is_ok_and(|found| found.is_file()));
        assert!(fs::read_to_string(&textfile).unwrap().contains("megapage_"));
        drop(reporter);
        assert!(!textfile.exists());
    }
    assert_eq!(fs::read_to_string(&victim).unwrap(), "precious");
    assert_eq!(fs::metadata(&victim).unwrap().permissions().mode() & 0o777, 0o600);
}

#[test]
fn the_socket_is_in_a_directory_of_our_own_and_a_link_in_its_place_is_left_alone() {
    let (tree, open, victim) = open_directory();
    let others = MetricsConfig { socket: open.join("s"), ..MetricsConfig::default() };
    let what = refused(&others);
    assert!(what.contains("may be written to by others: use one that may not"), "{what}");
    let first = config(tree.path());
    let mut reporter = start(&first);
    fs::remove_file(&first.socket).unwrap();
    std::os::unix::fs::symlink(&victim, &first.socket).unwrap();
    let wider = MetricsConfig { socket_mode: Mode(0o666), ..first.clone() };
    assert!(reporter.reload(&wider).is_err());
    assert_eq!(fs::metadata(&victim).unwrap().permissions().mode() & 0o777, 0o600);
}
