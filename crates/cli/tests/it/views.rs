//! `megapage map` and `megapage top` as a user meets them: pictures, tables, messages, exit
//! statuses, the terminal.

use crate::user;

use megapage_daemon::{MetricsConfig, Reporter};
use megapage_kernel::KernelRoot;
use megapage_kernel::identity::account_of;
use megapage_kernel::process::{read_cgroup, read_status};
use megapage_kernel::spawn::{open_pidfd, send_signal, signal, wait_readable};
use megapage_report::WIDTH;
use megapage_testing::{require_root, skip, until};
use megapage_units::Pid;
use serde_json::Value;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use user::{MEGAPAGE, megapage, refused, said};

/// A program that holds 24 MiB until this is dropped, which kills it.
struct Holder(Child);

impl Holder {
    fn start() -> Holder {
        let script = "
            my $text = 'x' x (24 << 20);
            $| = 1;
            print qq(ready\\n);
            sleep 600;
        ";
        let mut child = Command::new("perl").args(["-e", script]).stdout(Stdio::piped()).spawn().unwrap();
        let mut ready = [0; 6];
        child.stdout.as_mut().unwrap().read_exact(&mut ready).unwrap();
        Holder(child)
    }

    fn pid(&self) -> String {
        self.0.id().to_string()
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn bad_input_is_named_in_one_line() {
    refused(&["map"], "not provided: <PROCESS>");
    refused(&["map", "999999999"], "there is no process 999999999");
    refused(&["map", "no-such-name-here"], "no process matches 'no-such-name-here'");
    refused(&["map", "1", "--seconds", "0"], "give seconds from 0.001 to 3600");
    refused(&["map", "1", "--tracker", "guess"], "the trackers are bpf, idle-pages");
    refused(&["map", "1", "--tracker", "bpf", "--no-sample"], "cannot be used with '--no-sample'");
    refused(&["map", "1", "--budget", "0"], "give percent, above 0 and at most 100");
    refused(&["top", "--delay", "0"], "give seconds from 0.1 to 86400");
    refused(&["top", "--delay", "soon"], "give seconds from 0.1 to 86400");
    refused(&["top", "--sort", "beauty"], "sort by one of pid, user, name, unit, pod, resident");
    refused(&["top", "--once", "no-such-name-here"], "no process matches 'no-such-name-here'");
    refused(&["top", "--least", "lots"], "'lots' has an unknown unit");
    refused(&["top", "--least", "16"], "'16' has no unit; write 16k, 16m or 16g");
    refused(
        &["rnu"],
        "unrecognized subcommand 'rnu'; a similar subcommand exists: 'run' (see megapage --help)",
    );
    refused(&["top", "--least", "1m", "4711"], "cannot be used with");
}

#[test]
fn a_map_fits_its_width_and_holds_the_heap() {
    let holder = Holder::start();
    let text = megapage(&["map", &holder.pid(), "--no-sample"]);
    assert_eq!(text.status, 0, "{}", text.err);
    assert!(text.out.starts_with(&format!("perl (pid {})\n", holder.pid())), "{}", text.out);
    assert!(text.out.lines().all(|line| line.chars().count() <= usize::from(WIDTH)), "{}", text.out);
    assert!(text.out.contains("Not sampled: how hot its memory is, is not known."), "{}", text.out);
    assert!(!text.out.contains('\u{1b}'), "no colour in a pipe");

    let json = megapage(&["map", &holder.pid(), "--no-sample", "--json"]);
    let map: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(map["schema"], "megapage.map/1");
    assert_eq!(map["process"]["name"], "perl");
    assert_eq!((&map["sampling"], &map["totals"]["accessed_bytes"]), (&Value::Null, &Value::Null));
    let present = map["totals"]["present_bytes"].as_u64().unwrap();
    assert!((24 << 20..64 << 20).contains(&present), "{present}");
    let regions = map["process"]["regions"].as_array().unwrap();
    let sum: u64 = regions.iter().map(|region| region["present"].as_u64().unwrap() * 4096).sum();
    assert_eq!(sum, present);
}

#[test]
fn a_name_of_several_processes_is_no_map() {
    let (_one, _other) = (Holder::start(), Holder::start());
    refused(&["map", "^perl$", "--no-sample"], "give one of ");
}

#[test]
fn one_table_tells_what_changed() {
    let holder = Holder::start();
    let text = megapage(&["top", "--once", "--no-sample", "-d", "0.2", &holder.pid()]);
    assert_eq!(text.status, 0, "{}", text.err);
    assert!(text.out.lines().all(|line| line.chars().count() <= usize::from(WIDTH)), "{}", text.out);
    let row = text.out.lines().find(|line| line.trim_start().starts_with(&holder.pid())).unwrap();
    assert!(row.contains(" perl "), "{row}");
    assert!(text.out.contains(", over ") && text.out.contains("THP faults "), "{}", text.out);

    let mut small = Command::new("sleep").arg("600").spawn().unwrap();
    let json = megapage(&["top", "-o", "--json", "--no-sample", "-d", "0.2", "--least", "20m"]);
    small.kill().unwrap();
    small.wait().unwrap();
    let top: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!((&top["schema"], &top["sampling"]), (&"megapage.top/1".into(), &Value::Null));
    assert!(top["interval_seconds"].as_f64().unwrap() >= 0.2);
    let rows = top["processes"].as_array().unwrap();
    let row = rows.iter().find(|row| row["pid"] == holder.0.id()).expect("it has 24 MiB");
    assert!(row["resident_bytes"].as_u64().unwrap() >= 24 << 20);
    assert_eq!((&row["coverage"], &row["missed"]), (&Value::Null, &Value::Null));
    // Others may have shrunk between their selection and their reading.
    assert!(rows.iter().all(|row| row["pid"] != small.id()), "it has less");
}

#[test]
fn tables_say_whose_a_process_is_and_take_a_filter() {
    let holder = Holder::start();
    let once = |more: &[&str]| {
        let json = megapage(&[&["top", "-o", "--json", "--no-sample", "-d", "0.1"], more].concat());
        assert_eq!(json.status, 0, "{}", json.err);
        serde_json::from_str::<Value>(&json.out).unwrap()
    };
    let all = once(&[]);
    let row = all["processes"].as_array().unwrap().iter().find(|row| row["pid"] == holder.0.id()).unwrap();
    let root = KernelRoot::live();
    let pid = Pid(holder.0.id().cast_signed());
    let account = account_of(read_status(&root, pid).unwrap().uids[0]).unwrap();
    assert_eq!(row["user"].as_str(), account.as_ref().map(|account| account.name.as_str()));
    assert_eq!(row["cgroup"], read_cgroup(&root, pid).unwrap());
    assert_eq!(all["filtered_out"], 0);

    let one = once(&["--filter", &format!("^{}$", holder.pid())]);
    let count = |top: &Value| top["processes"].as_array().unwrap().len();
    assert_eq!((count(&one), &one["processes"][0]["name"]), (1, &Value::from("perl")));
    assert!(one["filtered_out"].as_u64() > Some(0) || count(&all) == 1);
    refused(&["top", "--filter", "(", "--once"], "invalid value '(' for '--filter <REGEX>'");
    refused(&["top", "--sort", "user-name"], "pid, user, name, unit, pod, resident");
}

/// Runs a command that writes to a pipe, for a user with this locale and a terminal of this number
/// of columns. Returns its output.
fn on_columns(columns: &str, locale: &str, arguments: &[&str]) -> String {
    let mut command = Command::new(MEGAPAGE);
    command.args(arguments).env("COLUMNS", columns).env("LC_ALL", locale);
    said(command.output().unwrap()).out
}

#[test]
fn reports_fit_the_terminal_and_its_locale() {
    let holder = Holder::start();
    let map = ["map", "--no-sample", &holder.pid()];
    for (columns, arguments) in [
        (60, &["top", "--once", "--no-sample", "-d", "0.1"][..]),
        (80, &["top", "--once", "--no-sample", "-d", "0.1"]),
        (200, &["top", "--once", "--no-sample", "-d", "0.1"]),
        (60, &map),
    ] {
        let text = on_columns(&columns.to_string(), "C.UTF-8", arguments);
        let widest = text.lines().map(|line| line.chars().count()).max().unwrap();
        assert!(widest <= columns, "{widest}: {text}");
        let head = text.lines().find(|line| line.contains(" PID") || line.starts_with("perl ")).unwrap();
        assert!(columns < 200 || head.chars().count() > 110, "{head}");
    }
    // The symbol of a gap in the map is not ASCII.
    let (plain, ascii) = (on_columns("100", "C.UTF-8", &map), on_columns("100", "C", &map));
    assert!(!plain.is_ascii() && ascii.is_ascii(), "{plain}\n{ascii}");
    let json = on_columns("100", "C", &["top", "--once", "--json", "--no-sample", "-d", "0.1"]);
    assert!(serde_json::from_str::<Value>(&json).is_ok(), "{json}");
}

#[test]
fn the_daemon_that_answers_is_shown() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("s");
    let named = socket.to_str().unwrap();
    let arguments = ["top", "--once", "--no-sample", "-d", "0.1", "--least", "20m", "--daemon", named];
    refused(&arguments, "no daemon answers on");
    let config = MetricsConfig { socket: socket.clone(), ..MetricsConfig::default() };
    let _reporter = Reporter::start(&KernelRoot::live(), &config).unwrap();
    let text = megapage(&arguments);
    assert_eq!(text.status, 0, "{}", text.err);
    let daemon = format!("Daemon     process {}, up ", std::process::id());
    assert!(text.out.contains(&daemon) && text.out.contains("no pass yet"), "{}", text.out);
    assert!(text.out.contains(" DAEMON"), "{}", text.out);
    assert!(text.out.lines().all(|line| line.chars().count() <= usize::from(WIDTH)), "{}", text.out);
    let json = megapage(&[&arguments[..], &["--json"]].concat());
    let top: Value = serde_json::from_str(&json.out).unwrap();
    assert_eq!(top["daemon"]["status"]["pid"], std::process::id());
    assert_eq!(top["daemon"]["decisions"]["newest"], 0);
}

#[test]
fn tables_follow_each_other_until_the_process_has_ended() {
    let holder = Holder::start();
    let pid = holder.pid();
    let mut top = Command::new(MEGAPAGE)
        .args(["top", "--no-sample", "-d", "0.1", &pid])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = top.stdout.take().unwrap();
    let mut text = Vec::new();
    while text.windows(10).filter(|window| window == b"\nPools    ").count() < 3 {
        let mut some = [0; 512];
        let count = out.read(&mut some).unwrap();
        assert!(count > 0, "it ended before its process");
        text.extend_from_slice(&some[..count]);
    }
    drop(holder);
    out.read_to_end(&mut text).unwrap();
    assert!(top.wait().unwrap().success());
}

#[test]
fn a_reader_that_goes_away_ends_it() {
    let mut top = Command::new(MEGAPAGE)
        .args(["top", "--no-sample", "-d", "0.1"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(top.stdout.take());
    let output = top.wait_with_output().unwrap();
    assert!(output.status.success() && output.stderr.is_empty(), "{output:?}");
}

/// Makes a copy of the command that every user may execute. Another process makes it: a file that
/// this process has open for writing during a fork could not be executed.
fn public_copy(directory: &Path) -> String {
    let copy = directory.join("megapage");
    let mode = ["-m", "755", MEGAPAGE, copy.to_str().unwrap()];
    assert!(Command::new("install").args(mode).status().unwrap().success());
    assert!(Command::new("chmod").args(["755", directory.to_str().unwrap()]).status().unwrap().success());
    copy.to_str().unwrap().into()
}

#[test]
fn another_users_process_is_listed_with_what_everybody_may_see() {
    if !require_root() {
        return;
    }
    let holder = Holder::start();
    let directory = tempfile::tempdir().unwrap();
    let copy = public_copy(directory.path());
    let unprivileged = |arguments: &[&str]| {
        let user = ["--reuid", "65534", "--regid", "65534", "--clear-groups", &copy];
        said(Command::new("setpriv").args(user).args(arguments).env("COLUMNS", "200").output().unwrap())
    };
    let text = unprivileged(&["top", "--once", "-d", "0.1", &holder.pid()]);
    assert_eq!(text.status, 0, "{}", text.err);
    let row = text.out.lines().find(|line| line.trim_start().starts_with(&holder.pid())).unwrap();
    let cells: Vec<&str> = row.split_whitespace().rev().collect();
    assert!(cells[0] == "denied" && cells[2..7] == ["-"; 5] && cells[7].ends_with('M'), "{row}");
    assert!(text.out.contains("is denied to us"), "{}", text.out);

    let map = unprivileged(&["map", &holder.pid()]);
    assert_eq!((map.status, map.out.as_str()), (2, ""), "{}", map.err);
    assert!(map.err.contains("denied to us"), "{}", map.err);
}

#[test]
fn a_tracker_that_clears_nothing_claims_no_sample() {
    let holder = Holder::start();
    let map = megapage(&["map", "--tracker", "pagemap", &holder.pid()]);
    assert_eq!(map.status, 0, "{}", map.err);
    assert!(map.out.contains("Not sampled: the pagemap tracker"), "{}", map.out);
    assert!(!map.out.contains("cleared"), "{}", map.out);
    let top = megapage(&["top", "--once", "-d", "0.6", "--tracker", "pagemap", &holder.pid()]);
    assert_eq!(top.status, 0, "{}", top.err);
    assert!(top.out.contains("Sampling   none: the pagemap tracker"), "{}", top.out);
    assert!(!top.out.contains("slows"), "{}", top.out);
}

/// `megapage top` on a separate terminal, made by script(1).
struct OnTerminal {
    script: Child,
}

impl OnTerminal {
    fn start(arguments: &str) -> Option<OnTerminal> {
        OnTerminal::start_on("xterm-256color", arguments)
    }

    fn start_on(term: &str, arguments: &str) -> Option<OnTerminal> {
        OnTerminal::command(term, &format!("top --no-sample {arguments}"))
    }

    fn command(term: &str, arguments: &str) -> Option<OnTerminal> {
        let command = format!("exec {MEGAPAGE} {arguments}");
        // A failing test must end, too.
        let script = Command::new("timeout")
            .args(["--foreground", "600", "script", "-qfec", &command, "/dev/null"])
            .env("TERM", term)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn();
        match script {
            Ok(script) => Some(OnTerminal { script }),
            Err(error) => {
                skip(&format!("script(1) cannot be run: {error}"));
                None
            }
        }
    }

    /// Reads until `wanted` has been shown.
    fn until(&mut self, wanted: &str) -> String {
        let mut seen = Vec::new();
        let out = self.script.stdout.as_mut().unwrap();
        while !String::from_utf8_lossy(&seen).contains(wanted) {
            let mut some = [0; 512];
            let count = out.read(&mut some).unwrap();
            assert!(count > 0, "ended without {wanted:?}: {}", String::from_utf8_lossy(&seen));
            seen.extend_from_slice(&some[..count]);
        }
        String::from_utf8_lossy(&seen).into_owned()
    }

    fn press(&mut self, keys: &str) {
        self.script.stdin.as_mut().unwrap().write_all(keys.as_bytes()).unwrap();
    }

    /// Returns the output until the end, and the exit status of script, which is that of the
    /// command.
    fn end(mut self) -> (String, i32) {
        let mut rest = Vec::new();
        self.script.stdout.as_mut().unwrap().read_to_end(&mut rest).unwrap();
        let status = self.script.wait().unwrap().code().expect("script is not killed");
        (String::from_utf8_lossy(&rest).into_owned(), status)
    }
}

impl Drop for OnTerminal {
    fn drop(&mut self) {
        // Not SIGKILL: timeout(1) forwards this signal.
        let _ = send_signal(Pid(self.script.id().cast_signed()), signal::SIGTERM);
        let _ = self.script.wait();
    }
}

const ENTER: &str = "\u{1b}[?1049h";
const LEAVE: &str = "\u{1b}[?1049l";

#[test]
fn a_terminal_that_knows_letters_alone_gets_letters_alone() {
    let Some(mut top) = OnTerminal::start_on("dumb", "-d 0.2") else { return };
    let seen = top.until("NAME");
    assert!(!seen.contains('\u{1b}'), "{seen:?}");
}

#[test]
fn on_a_terminal_keys_work_and_the_screen_is_given_back() {
    let Some(mut top) = OnTerminal::start("-d 0.2") else { return };
    assert!(top.until("q quit").contains(ENTER));
    top.press("r");
    top.until("by resident, least first");
    top.press("\u{1b}[C");
    top.until("by huge, least first");
    top.press("q");
    let (rest, status) = top.end();
    assert!(rest.contains(LEAVE), "{rest:?}");
    assert_eq!(status, 0);
}

#[test]
fn on_a_terminal_a_filter_is_typed_and_help_is_shown() {
    let holder = Holder::start();
    let Some(mut top) = OnTerminal::start("-d 0.2") else { return };
    top.until("/ filter");
    top.press("/");
    top.until("esc drop");
    top.press(&format!("^{}$", holder.pid()));
    top.until("1 process by resident, matching ");
    top.press("\r");
    top.until("/ filter");
    top.press("?");
    top.until("cycles of address translation");
    top.press("?");
    top.until("1 process by resident, matching ");
    top.press("/(");
    top.until("/^");
    top.press("\u{1b}");
    top.until("processes by resident");
    top.press("q");
    assert_eq!(top.end().1, 0);
}

#[test]
fn long_work_shows_one_line_that_goes() {
    // If accesses cannot be sampled, nothing takes long.
    if !require_root() {
        return;
    }
    let holder = Holder::start();
    let arguments = format!("map {} --seconds 4", holder.pid());
    let Some(mut map) = OnTerminal::command("xterm-256color", &arguments) else { return };
    let mut seen = Vec::new();
    let out = map.script.stdout.as_mut().unwrap();
    let _ = out.read_to_end(&mut seen);
    let text = String::from_utf8_lossy(&seen).into_owned();
    let line = text.find("megapage: sampling, ").unwrap_or_else(|| panic!("{text:?}"));
    let gone = text.rfind("\r\u{1b}[K").unwrap_or_else(|| panic!("{text:?}"));
    let report = text.find("perl (pid ").unwrap();
    assert!(line < gone && gone < report && !text[report..].contains("sampling, "), "{text:?}");
    // No line in a pipe.
    let quiet = megapage(&["map", &holder.pid(), "--seconds", "3"]);
    assert_eq!((quiet.status, quiet.err.as_str()), (0, ""));
}

/// Returns the child of a process that has one.
fn only_child(parent: Pid) -> Pid {
    until("a child", || user::children(parent).first().map(|(pid, _)| *pid))
}

#[test]
fn a_signal_gives_the_screen_back_and_is_died_of() {
    let Some(mut top) = OnTerminal::start("-d 60") else { return };
    top.until("q quit");
    // timeout has started script, which has started the command.
    let timeout = Pid(top.script.id().cast_signed());
    let child = only_child(only_child(timeout));
    send_signal(child, signal::SIGTERM).unwrap();
    let (rest, status) = top.end();
    assert!(rest.contains(LEAVE), "{rest:?}");
    assert_eq!(status, 128 + signal::SIGTERM);
}

#[test]
fn a_terminal_that_goes_away_ends_it() {
    let Some(mut top) = OnTerminal::start("-d 60") else { return };
    top.until("q quit");
    let timeout = Pid(top.script.id().cast_signed());
    let script = only_child(timeout);
    let child = only_child(script);
    let ended = open_pidfd(child).unwrap();
    send_signal(script, signal::SIGKILL).unwrap();
    assert!(
        wait_readable(ended.as_fd(), Duration::from_secs(180)).unwrap(),
        "still there without its terminal"
    );
}
