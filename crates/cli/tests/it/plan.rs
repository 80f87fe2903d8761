//! `megapage record` and `megapage plan`, as a user runs them. A real process is recorded and
//! planned; files that are torn, hostile or of other programs are not.

use crate::user;

use megapage_testing::require_root;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use tempfile::TempDir;
use user::{megapage, refused};

/// Perl program that holds 64 MiB, and reads bytes at random places without end. Every Debian has
/// Perl.
const RANDOM_READER: &str = "$s = 'x' x (64 << 20); $| = 1; print qq(ready\\n); \
     for (;;) { $n += ord(substr($s, int(rand(64 << 20)), 1)) }";

/// A child that is killed at the end of the test, also after a failure.
struct Killed(Child);

impl Drop for Killed {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// Starts the program under a name that no other process has.
fn program(directory: &Path, name: &str) -> Killed {
    let link = directory.join(name);
    std::os::unix::fs::symlink("/usr/bin/perl", &link).unwrap();
    let mut child = Command::new(link).args(["-e", RANDOM_READER]).stdout(Stdio::piped()).spawn().unwrap();
    std::io::Read::read_exact(child.stdout.as_mut().unwrap(), &mut [0; 6]).unwrap();
    Killed(child)
}

fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

/// Returns a recording of a host with one service of this cost, as `megapage record` writes it.
fn recording(host: &str, cost: &str) -> String {
    let mut text = format!(
        r#"{{"header":{{"version":1,"host":"{host}","start":1760000000,"every":60.0,"budget":0.005,"named":true,"kernel":"6.18","processor":"","processors":4,"memory":8589934592,"tlb":{{"first_base":64,"first_2m":32,"first_1g":4,"second":1536,"second_1g":16,"source":"model"}},"thp":"madvise","tracker":"bpf","costs":"estimated","lacks":[]}}}}"#
    );
    for minute in 0..=90 {
        let (at, span) = (minute * 60, if minute == 0 { 0 } else { 60 });
        text += &format!(
            "\n{{\"moment\":{{\"at\":{at}.0,\"span\":{span}.0,\"available\":4294967296,\"own\":0.1,\"services\":[{{\"id\":\"search\",\"app\":\"redis-server\",\"processes\":1,\"cpu\":{}.0,\"resident\":1073741824,\"anonymous\":1073741824,\"could\":1073741824,\"need\":512,\"heat\":[{{\"pages\":512,\"regions\":512,\"visits\":1e6}}],\"class\":\"random\",\"cost\":{cost}}}]}}}}",
            span / 2
        );
    }
    text + "\n"
}

const GAINS: &str = r#"{"low":0.15,"likely":0.2,"high":0.25}"#;
const GAINS_NOT: &str = r#"{"low":0.0,"likely":0.005,"high":0.01}"#;

struct Files(TempDir);

impl Files {
    fn new() -> Files {
        Files(tempfile::tempdir().unwrap())
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    fn write(&self, name: &str, text: &str) -> String {
        fs::write(self.path(name), text).unwrap();
        self.path(name).display().to_string()
    }
}

#[test]
fn a_real_process_is_recorded_and_planned() {
    if !require_root() {
        return;
    }
    let files = Files::new();
    let _reader = program(files.0.path(), "plan-reader");
    let day = files.path("day.jsonl").display().to_string();
    // A budget far above the usual one: only the content of the recording matters here.
    let arguments = ["record", "--names", "--seconds", "8", "--every", "1", "--budget", "100", "--json"];
    let done = megapage(&[&arguments[..], &["--output", &day]].concat());
    assert_eq!(done.status, 0, "{}", done.err);
    let summary = json(&done.out);
    assert_eq!(summary["schema"], "megapage.record/1");
    assert!(summary["moments"].as_u64().unwrap() >= 3 && summary["ended_by"] == "time", "{summary}");
    assert!(summary["cpu_seconds"].as_f64().unwrap() > 0.0);

    let text = fs::read_to_string(&day).unwrap();
    let last: Value = text.lines().rev().map(json).find(|line| line["moment"].is_object()).unwrap();
    let services = last["moment"]["services"].as_array().unwrap();
    let reader = services.iter().find(|service| service["id"] == "plan-reader").expect("it was running");
    let need = reader["need"].as_u64().unwrap();
    // Perl holds the string twice.
    assert!((31..80).contains(&need), "64 MiB: {reader}");
    assert!(reader["cpu"].as_f64().unwrap() > 0.0 && reader["anonymous"].as_u64().unwrap() >= 64 << 20);

    let planned = megapage(&["plan", "--json", &day]);
    assert_eq!(planned.status, 0, "{}", planned.err);
    let plan = json(&planned.out);
    assert_eq!((&plan["schema"], &plan["recorded_hosts"]), (&"megapage.plan/1".into(), &1.into()));
    let services = plan["services"].as_array().unwrap();
    let reader = services.iter().find(|service| service["service"] == "plan-reader").unwrap();
    assert!(!reader["why"].as_str().unwrap().is_empty(), "{reader}");
    assert!(reader["cpu_seconds_per_day"].as_f64().unwrap() > 0.0, "it never rests: {reader}");
    assert_eq!(reader["huge_pages"].as_u64().unwrap(), need);
    assert!(!plan["sentence"].as_str().unwrap().is_empty());
    let human = megapage(&["plan", &day]);
    assert!(human.out.lines().all(|line| line.chars().count() <= 100), "{}", human.out);
}

#[test]
fn a_recording_says_nothing_of_whose_host_it_is() {
    if !require_root() {
        return;
    }
    let files = Files::new();
    let _reader = program(files.0.path(), "plan-secret");
    let day = files.path("day.jsonl").display().to_string();
    let record = |more: &[&str]| {
        let arguments =
            ["record", "plan-secret", "--once", "--every", "0.5", "--budget", "100", "--output", &day];
        let done = megapage(&[&arguments[..], more].concat());
        assert_eq!(done.status, 0, "{}", done.err);
    };
    let key = files.write("key", "a key of a fleet, long enough");
    record(&["--key-file", &key]);
    let text = fs::read_to_string(&day).unwrap();
    let host = String::from_utf8(Command::new("uname").arg("-n").output().unwrap().stdout).unwrap();
    for secret in ["plan-secret", host.trim(), &files.0.path().display().to_string(), "/usr/bin"] {
        assert!(!text.contains(secret), "{secret} in {text}");
    }
    assert_eq!(
        fs::metadata(&day)
            .map(|it| std::os::unix::fs::PermissionsExt::mode(&it.permissions()) & 0o777)
            .unwrap(),
        0o600
    );
    // The same key gives the same names of host and service again, and the recording continues.
    record(&["--key-file", &key]);
    let text = fs::read_to_string(&day).unwrap();
    let headers: Vec<Value> = text
        .lines()
        .map(json)
        .filter(|line| line["header"].is_object())
        .map(|line| line["header"]["host"].clone())
        .collect();
    assert!(headers.len() == 2 && headers[0] == headers[1], "{headers:?}");
    let plan = json(&megapage(&["plan", "--json", &day]).out);
    assert_eq!(plan["recorded_hosts"], 1);
}

#[test]
fn a_recording_that_is_stopped_or_full_ends_in_order() {
    if !require_root() {
        return;
    }
    let files = Files::new();
    let day = files.path("day.jsonl").display().to_string();
    let mut child = Command::new(user::MEGAPAGE)
        .args(["record", "--seconds", "600", "--every", "300", "--budget", "100", "--output", &day])
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    user::until("the first moment", || {
        fs::read_to_string(&day).ok().filter(|text| text.contains("\"moment\""))
    });
    Command::new("kill").args(["-TERM", &child.id().to_string()]).status().unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(0));
    let text = fs::read_to_string(&day).unwrap();
    assert!(text.trim_end().lines().last().unwrap().contains("\"why\":\"signal\""), "{text}");

    let small = files.path("small.jsonl").display().to_string();
    let arguments = ["record", "--seconds", "5", "--every", "0.2", "--budget", "100", "--max-size", "1k"];
    let full = megapage(&[&arguments[..], &["--output", &small]].concat());
    assert!(full.status == 1 && full.err.contains("--max-size"), "{full:?}");
    assert!(fs::read_to_string(&small).unwrap().contains("\"why\":\"full\""));
}

#[test]
fn recordings_merge_in_any_order_and_torn_ones_are_read() {
    let files = Files::new();
    let one = files.write("one", &recording("h1", GAINS));
    let two = files.write("two", &recording("h2", GAINS_NOT));
    let whole = recording("h3", GAINS);
    let torn = files.write("torn", &whole[..whole.len() - 40]);
    let first = megapage(&["plan", "--json", &one, &two, &torn]);
    assert_eq!(first.status, 0, "{}", first.err);
    assert!(first.err.lines().count() == 1 && first.err.contains("torn"), "{}", first.err);
    assert_eq!(first.out, megapage(&["plan", "--json", &torn, &two, &one]).out);
    let plan = json(&first.out);
    assert_eq!(plan["recorded_hosts"], 3);
    let service = &plan["services"][0];
    assert_eq!((&service["service"], &service["app"]), (&"search".into(), &"redis-server".into()));
    assert_eq!(service["hosts"], 3);
    assert_eq!(plan["hosts"][0]["huge_pages"], 512);
    let text = megapage(&["plan", &one, &two]);
    assert!(
        text.out.contains("search") && text.out.contains("(redis-server)") && text.out.contains("pool 2 MiB"),
        "{}",
        text.out
    );

    let nothing = megapage(&["plan", &two]);
    assert!(
        nothing.out.contains("gains nothing") && nothing.out.contains("leave all as they are"),
        "{}",
        nothing.out
    );
}

#[test]
fn bad_input_is_one_line_and_status_2() {
    let files = Files::new();
    let good = files.write("good", &recording("h", GAINS));
    let hello = files.write("hello", "hello\n");
    let steering = files.write("steering", &recording("h", GAINS).replace("\"h\"", "\"h\\u001b[2J\""));
    let later = files.write("later", &recording("h", GAINS).replace("\"version\":1", "\"version\":9"));
    let bad = files.write("bad", &recording("h", GAINS).replacen("\"need\":512", "\"need\":-1", 1));
    let other = files.write("other", "mine\n");
    let short = files.write("key", "short");
    fs::write(files.path("binary"), [0xff, 0xfe, 0x00]).unwrap();
    let binary = files.path("binary").display().to_string();
    let answer = files.write("answer", "{\"status\":\"error\",\"error\":\"too many points\"}");
    refused(&["plan"], "required");
    refused(&["plan", "/nonexistent"], "No such file");
    refused(&["plan", &hello], "not a recording");
    refused(&["plan", &steering], "host is a word");
    refused(&["plan", &later], "version 9");
    refused(&["plan", &bad], "line 2");
    refused(&["plan", &binary], "not text");
    refused(&["plan", &answer], "not a recording");
    refused(&["plan", &hello, &later], "and 1 more");
    refused(&["plan", "/dev/zero"], "not a regular file");
    refused(&["plan", &good, "--policy", "best"], "no policy is named 'best'");
    refused(&["record", "--json"], "--output FILE");
    refused(&["record", "--output", &other], "no recording");
    refused(&["record", "--budget", "0"], "above 0");
    refused(&["record", "no such process"], "no process matches");
    refused(&["record", "--seconds", "soon"], "give seconds");
    refused(
        &["record", "--key-file", &short, "--output", &files.path("x").display().to_string()],
        "at least 16 bytes",
    );
    assert_eq!(fs::read_to_string(&other).unwrap(), "mine\n");
    // A recording that cannot be read does not keep the others from being planned.
    let some = megapage(&["plan", "--json", &good, &hello]);
    assert!(some.status == 1 && some.err.contains("not a recording"), "{}", some.err);
    assert_eq!(json(&some.out)["recorded_hosts"], 1);
}

/// The shipped unit starts as it is written.
#[test]
fn the_unit_that_is_shipped_is_sound() {
    let shipped = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../dist/systemd/megapage-record.service");
    let text = fs::read_to_string(shipped).unwrap().replace("@PREFIX@/bin/megapage", user::MEGAPAGE);
    let files = Files::new();
    let unit = files.write("megapage-record.service", &text);
    let verify = Command::new("systemd-analyze").args(["verify", "--man=no", &unit]).output();
    let Ok(said) = verify else {
        return megapage_testing::skip("there is no systemd-analyze to judge the unit");
    };
    let errors = String::from_utf8_lossy(&said.stderr);
    assert!(!errors.contains("megapage-record"), "{errors}");
    // The command takes the unit's arguments.
    let line = text.lines().find_map(|line| line.strip_prefix("ExecStart=")).unwrap();
    let output = files.path("day.jsonl").display().to_string();
    let arguments: Vec<&str> = line
        .split_whitespace()
        .skip(1)
        .filter(|word| !word.starts_with('$'))
        .map(|word| if word.starts_with("%S/") { output.as_str() } else { word })
        .collect();
    let refused = megapage(&[&arguments[..], &["--seconds", "soon"]].concat());
    assert!(refused.err.contains("give seconds"), "{}", refused.err);
}
