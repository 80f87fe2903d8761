//! Alerts and dashboard in a real Prometheus, which scrapes a daemon. Each expression is valid, and
//! has data, or none if nothing is wrong.

use crate::user;

use megapage_kernel::KernelRoot;
use megapage_kernel::process::read_cgroup;
use megapage_kernel::spawn::{send_signal, signal};
use megapage_testing::{require_root, skip, wait_for};
use megapage_units::Pid;
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use user::{MEGAPAGE, busy_program, until, until_unlocked};

const ALERTS: &str = "dist/prometheus/alerts.yml";
const BOARD: &str = "dist/grafana/megapage.json";

fn shipped(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Returns true if Debian's package prometheus is installed; else skips loudly.
fn has_prometheus() -> bool {
    let there = ["prometheus", "promtool"]
        .iter()
        .all(|name| Command::new(name).arg("--version").output().is_ok_and(|output| output.status.success()));
    if !there {
        skip("prometheus and promtool are not installed");
    }
    there
}

fn promtool(arguments: &[&str]) -> String {
    let output = Command::new("promtool").args(arguments).output().unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "promtool {arguments:?}: {said}");
    said
}

#[test]
fn promtool_accepts_the_rules_and_the_scrape_configuration() {
    if !has_prometheus() {
        return;
    }
    let said = promtool(&["check", "rules", "--lint=all", "--lint-fatal", shipped(ALERTS).to_str().unwrap()]);
    let rules = fs::read_to_string(shipped(ALERTS)).unwrap().matches("- alert: ").count();
    assert!(said.contains(&format!("SUCCESS: {rules} rules found")), "{said}");
    let directory = tempfile::tempdir().unwrap();
    let config = directory.path().join("prometheus.yml");
    // A machine with the rules installed has them elsewhere.
    let scrape = fs::read_to_string(shipped("dist/prometheus/scrape.yml")).unwrap();
    let rules = shipped(ALERTS).canonicalize().unwrap();
    let scrape = scrape.replace("/etc/prometheus/rules/megapage-alerts.yml", rules.to_str().unwrap());
    fs::write(&config, scrape).unwrap();
    assert!(promtool(&["check", "config", config.to_str().unwrap()]).contains("1 rule files found"));
    let broken = directory.path().join("broken.yml");
    fs::write(&broken, fs::read_to_string(shipped(ALERTS)).unwrap().replacen("> 300", "> > 300", 1)).unwrap();
    let check = Command::new("promtool").args(["check", "rules"]).arg(&broken).output().unwrap();
    assert!(!check.status.success(), "it accepts anything");
}

/// The alerts about pools that are full, idle, on overcommit, smaller than before, and in order.
#[test]
fn alerts_about_pools_fire_when_they_should() {
    if !has_prometheus() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let series = |machine: &str, [total, free, surplus, reserved]: [&str; 4]| {
        let pages = |state: &str, values: &str| {
            format!(
                "      - series: 'megapage_hugetlb_pages{{instance=\"{machine}\",pagesize=\"2m\",node=\"0\",state=\"{state}\"}}'\n        \
                 values: '{values}'\n"
            )
        };
        let reserved = format!(
            "      - series: 'megapage_hugetlb_reserved_pages{{instance=\"{machine}\",pagesize=\"2m\"}}'\n        values: '{reserved}'\n"
        );
        pages("total", total) + &pages("free", free) + &pages("surplus", surplus) + &reserved
    };
    let input = [
        series("full", ["64x400", "8x400", "0x400", "8x400"]),
        series("idle", ["64x400", "60x400", "0x400", "0x400"]),
        series("surplus", ["64x400", "20x400", "3x400", "0x400"]),
        series("shrank", ["64x390 32x10", "10x400", "0x400", "0x400"]),
        series("well", ["64x400", "20x400", "0x400", "0x400"]),
        series("none", ["0x400", "0x400", "0x400", "0x400"]),
    ]
    .concat();
    let expected = [
        ("MegapagePoolExhausted", "full"),
        ("MegapagePoolIdle", "idle"),
        ("MegapagePoolSurplus", "surplus"),
        ("MegapagePoolShrank", "shrank"),
    ];
    let tests: String = expected
        .iter()
        .map(|(alert, machine)| {
            // After 33 hours, at five minutes a sample.
            format!(
                "      - expr: 'sum by (alertname, instance) (ALERTS{{alertname=\"{alert}\",alertstate=\"firing\"}})'\n        \
                 eval_time: 1980m\n        exp_samples:\n          - labels: '{{alertname=\"{alert}\",instance=\"{machine}\"}}'\n            value: 1\n"
            )
        })
        .collect();
    let rules = shipped(ALERTS).canonicalize().unwrap();
    let file = directory.path().join("test.yml");
    let text = format!(
        "rule_files: ['{}']\nevaluation_interval: 5m\ntests:\n  - interval: 5m\n    input_series:\n{input}    promql_expr_test:\n{tests}",
        rules.display()
    );
    fs::write(&file, text).unwrap();
    promtool(&["test", "rules", file.to_str().unwrap()]);
}

/// A process that is stopped when this is dropped.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = send_signal(Pid(self.0.id().cast_signed()), signal::SIGTERM);
        let _ = self.0.wait();
    }
}

/// Returns two free ports of this machine.
fn free_ports() -> (u16, u16) {
    let held = [(); 2].map(|()| TcpListener::bind("127.0.0.1:0").unwrap());
    let [one, other] = held.each_ref().map(|listener| listener.local_addr().unwrap().port());
    (one, other)
}

/// Returns the answer to a GET as JSON; `None` if nothing answers yet.
fn get(port: u16, path: &str) -> Option<Value> {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).ok()?;
    stream.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: localhost\r\n\r\n").ok()?;
    let mut text = String::new();
    stream.read_to_string(&mut text).ok()?;
    serde_json::from_str(text.split_once("\r\n\r\n")?.1).ok()
}

fn query(port: u16, expression: &str) -> Value {
    let encoded: String = expression.bytes().map(|byte| format!("%{byte:02X}")).collect();
    let answer = get(port, &format!("/api/v1/query?query={encoded}")).expect("it answers");
    assert_eq!(answer["status"], "success", "{expression}: {answer}");
    answer["data"]["result"].clone()
}

/// Returns the expressions of the dashboard with their panels, for one instance and a range that
/// fits the scrapes.
fn panels(instance: &str) -> Vec<(String, String)> {
    let board: Value = serde_json::from_str(&fs::read_to_string(shipped(BOARD)).unwrap()).unwrap();
    let mut found = Vec::new();
    for panel in board["panels"].as_array().unwrap() {
        for target in panel["targets"].as_array().unwrap() {
            let expression = target["expr"].as_str().unwrap();
            let expression = expression.replace("$instance", instance).replace("$__rate_interval", "60s");
            assert!(!expression.contains('$'), "{expression}");
            found.push((panel["title"].as_str().unwrap().to_string(), expression));
        }
    }
    found
}

#[test]
fn a_real_prometheus_answers_every_panel_and_alert() {
    if !has_prometheus() || !require_root() {
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let of = directory.path();
    let busy = busy_program();
    let busy = Running(busy);
    let (metrics, api) = free_ports();
    let config = of.join("daemon.toml");
    let text = format!(
        "interval = '1s'\nlock_file = '{0}/lock'\nstate_file = '{0}/state.json'\n[processes]\ninclude = ['^no-such-name$']\n\
         pids = [{1}]\n[metrics]\nsocket = '{0}/socket'\nlisten = '127.0.0.1:{metrics}'\n",
        of.display(),
        busy.0.id()
    );
    fs::write(&config, text).unwrap();
    until_unlocked(&of.join("lock"));
    let mut daemon = Command::new(MEGAPAGE);
    daemon.args(["daemon", "--config", config.to_str().unwrap()]).stdout(Stdio::null()).stderr(Stdio::null());
    let _daemon = Running(daemon.spawn().unwrap());

    let rules = shipped(ALERTS).canonicalize().unwrap();
    let scrape = of.join("prometheus.yml");
    let text = format!(
        "global: {{scrape_interval: 2s, scrape_timeout: 2s, evaluation_interval: 2s}}\nrule_files: ['{}']\nscrape_configs:\n  \
         - job_name: megapage\n    static_configs: [{{targets: ['127.0.0.1:{metrics}']}}]\n",
        rules.display()
    );
    fs::write(&scrape, text).unwrap();
    let mut prometheus = Command::new("prometheus");
    prometheus.arg(format!("--config.file={}", scrape.display()));
    prometheus.arg(format!("--storage.tsdb.path={}/data", of.display()));
    prometheus.arg(format!("--web.listen-address=127.0.0.1:{api}"));
    prometheus.stdout(Stdio::null()).stderr(Stdio::null());
    let _prometheus = Running(prometheus.spawn().unwrap());

    // At least two passes, and as many scrapes as rates need.
    until("scrapes of a daemon at work", || {
        let answer = get(api, "/api/v1/query?query=count_over_time(megapage_passes_total%5B1m%5D)")?;
        let count = answer["data"]["result"][0]["value"][1].as_str()?.parse::<u64>().ok()?;
        let info = query(api, "megapage_process_info");
        (count >= 6 && info.as_array().is_some_and(|series| !series.is_empty())).then_some(())
    });
    let instance = format!("127.0.0.1:{metrics}");
    let info = &query(api, "megapage_process_info")[0]["metric"];
    let group = read_cgroup(&KernelRoot::live(), Pid(busy.0.id().cast_signed())).unwrap();
    assert_eq!((&info["pid"], &info["uid"]), (&busy.0.id().to_string().into(), &"0".into()), "{info}");
    // Prometheus drops an empty label.
    assert_eq!(info["cgroup"].as_str().unwrap_or_default(), group, "{info}");

    let panels = panels(&instance);
    // Without pages in a pool there is no share of them. Without a cost there is no share of
    // cycles. A machine may have no PSI.
    let may_be_empty =
        ["Pools: share in use", "Processes: share of cycles spent on translation", "Memory pressure"];
    let actions = ["Actions by result", "Time of an action, 50th and 99th percentile", "Promoted and freed"];
    let mut has_data: BTreeMap<&str, bool> = BTreeMap::new();
    // A rate has a value once there are two scrapes in its range.
    wait_for("data in each panel", || {
        for (title, expression) in &panels {
            let series = query(api, expression).as_array().unwrap().len();
            *has_data.entry(title).or_default() |= series > 0;
        }
        let is_due = |title: &&str| ![&may_be_empty[..], &actions].concat().contains(title);
        let empty: Vec<_> = has_data.iter().filter(|(title, has)| !**has && is_due(title)).collect();
        if !empty.is_empty() {
            eprintln!("panels without data: {empty:?}");
        }
        empty.is_empty()
    });
    assert!(has_data.len() >= 18, "{has_data:?}");

    let answer = get(api, "/api/v1/rules").unwrap();
    let rules = answer["data"]["groups"][0]["rules"].as_array().unwrap();
    assert!(rules.len() >= 12, "{answer}");
    for rule in rules {
        let (name, expression) = (&rule["name"], rule["query"].as_str().unwrap());
        assert!(query(api, expression).is_array(), "{name}");
        let health = until("evaluation of the rule", || {
            let now = get(api, "/api/v1/rules")?;
            let rules = now["data"]["groups"][0]["rules"].as_array()?.clone();
            let own = rules.into_iter().find(|own| own["name"] == *name)?;
            (own["health"] != "unknown").then_some(own)
        });
        assert_eq!(health["health"], "ok", "{health}");
    }
}
