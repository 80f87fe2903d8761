//! Units as Debian ships them, in a separate root: tests how they are read, and that switching off
//! undoes switching on.

use megapage_kernel::KernelRoot;
use megapage_launch::request::{OwnThp, Request, Text, TextRequest};
use megapage_systemd::{Asked, SystemdError, UnitName, Way, disable, enable, find};
use rand_pcg::Pcg64Mcg;
use rand_pcg::rand_core::Rng;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

const PACKAGES: &str = "usr/lib/systemd/system";
const ETC: &str = "etc/systemd/system";
const LAUNCHER: &str = "/usr/local/bin/megapage";

struct Root(tempfile::TempDir);

impl Root {
    /// Makes a root with all fixtures, and with the programs that the tests examine.
    fn new() -> Root {
        let root = Root(tempfile::tempdir().unwrap());
        fs::create_dir_all(root.path(ETC)).unwrap();
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../fixtures/units");
        for entry in fs::read_dir(fixtures).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_str().unwrap().to_string();
            root.write(&format!("{PACKAGES}/{name}"), &fs::read_to_string(&path).unwrap());
        }
        for program in [
            "bin/redis-server",
            "bin/valkey-server",
            "bin/memcached",
            "bin/dynamic",
            "sbin/mariadbd",
            "lib/postgresql/15/bin/postgres",
        ] {
            let path = root.path("usr").join(program);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::copy("/bin/true", path).unwrap();
        }
        root
    }

    fn path(&self, path: &str) -> PathBuf {
        self.0.path().join(path)
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn find(&self, text: &str) -> Result<UnitName, SystemdError> {
        find(self.0.path(), text)
    }

    fn enable(&self, unit: &str, request: Request) -> Result<megapage_systemd::Change, SystemdError> {
        let unit = self.find(unit)?;
        enable(&KernelRoot::live(), self.0.path(), &unit, &Asked { request, launcher: LAUNCHER.into() })
    }

    /// Returns every path below the root, with its content.
    fn held(&self) -> BTreeMap<PathBuf, String> {
        let mut held = BTreeMap::new();
        let mut open = vec![self.0.path().to_path_buf()];
        while let Some(directory) = open.pop() {
            for entry in fs::read_dir(&directory).unwrap() {
                let path = entry.unwrap().path();
                let kind = fs::symlink_metadata(&path).unwrap().file_type();
                let text = match () {
                    () if kind.is_dir() => {
                        open.push(path.clone());
                        String::new()
                    }
                    () if kind.is_symlink() => fs::read_link(&path).unwrap().display().to_string(),
                    () => String::from_utf8_lossy(&fs::read(&path).unwrap()).into_owned(),
                };
                held.insert(path, text);
            }
        }
        held
    }
}

/// Returns a request that needs the launcher for any program.
fn without_thp() -> Request {
    Request {
        thp: OwnThp::Never,
        heap: megapage_launch::request::Heap::None,
        heed_verdict: true,
        ..Request::plain("")
    }
}

fn assigned(change: &megapage_systemd::Change) -> Vec<&str> {
    let text = change.after.as_deref().unwrap();
    text.lines().skip_while(|line| *line != "[Service]").skip(1).collect()
}

/// Returns the lines for this service, without those that every drop-in has.
fn added(change: &megapage_systemd::Change) -> Vec<&str> {
    let of_all = ["EnvironmentFile=-/run/megapage/", "ExecStartPre=-+", "ExecStopPost=-+"];
    let mut lines = assigned(change);
    lines.retain(|line| !of_all.iter().any(|start| line.starts_with(start)));
    lines
}

#[test]
fn a_service_can_be_started_without_megapage() {
    let root = Root::new();
    let [file, after, before] = [
        "EnvironmentFile=-/run/megapage/plain-%n",
        "ExecStopPost=-+/usr/local/bin/megapage enable --ended %n",
        "ExecStartPre=-+/usr/local/bin/megapage enable --starting %n",
    ];
    // The file is last, so that it comes after all other variables.
    let launched = root.enable("redis-server", without_thp()).unwrap();
    assert!(assigned(&launched).ends_with(&[file, after]), "{:?}", assigned(&launched));
    // A runtime does not check the switch by itself.
    let java = root.enable("elasticsearch", Request::plain("")).unwrap();
    assert!(assigned(&java).ends_with(&[file, after, before]), "{:?}", assigned(&java));
}

#[test]
fn the_launcher_goes_before_every_command_as_it_is_written() {
    let root = Root::new();
    let change = root.enable("redis-server", without_thp()).unwrap();
    assert_eq!(change.decision.as_ref().unwrap().way, Way::Launcher);
    assert_eq!(
        added(&change),
        [
            "ExecStart=",
            "ExecStart=/usr/local/bin/megapage run --thp never -- /usr/bin/redis-server \
             /etc/redis/redis.conf --supervised systemd --daemonize no",
            // No library is used, and the launcher's own calls are all in @system-service.
            "ExecPaths=/usr/local/bin/megapage",
        ]
    );
    let instance = root.enable("redis-server@a", without_thp()).unwrap();
    assert!(
        instance.path.ends_with("redis-server@a.service.d/50-megapage.conf"),
        "{}",
        instance.path.display()
    );
    assert!(added(&instance)[1].contains("/etc/redis/redis-%i.conf"), "{:?}", added(&instance));
    let shell = root.enable("mariadb", without_thp()).unwrap();
    assert!(
        added(&shell)[1].ends_with("exec /usr/sbin/mariadbd $MYSQLD_OPTS $_WSREP_NEW_CLUSTER $VAR\""),
        "{:?}",
        added(&shell)
    );
    assert!(shell.decision.unwrap().program.ends_with("usr/sbin/mariadbd"));
    let postgres = root.enable("postgresql@15-main", without_thp()).unwrap();
    assert!(
        added(&postgres)[1].starts_with("ExecStart=-/usr/local/bin/megapage run --thp never -- "),
        "{:?}",
        added(&postgres)
    );
    assert!(postgres.decision.unwrap().program.ends_with("15/bin/postgres"));
    let template = root.enable("postgresql@", without_thp()).unwrap();
    assert!(template.path.ends_with("postgresql@.service.d/50-megapage.conf"));
}

#[test]
fn a_script_that_starts_a_jvm_gets_the_variable_that_it_reads() {
    let root = Root::new();
    let change = root.enable("elasticsearch", Request::plain("")).unwrap();
    assert_eq!(added(&change), ["Environment=ES_JAVA_OPTS=-XX:+UseTransparentHugePages"]);
    root.write(
        &format!("{ETC}/elasticsearch.service.d/heap.conf"),
        "[Service]\nEnvironment=\"ES_JAVA_OPTS=-Xms1g -Xmx1g\"\n",
    );
    let error = root.enable("elasticsearch", Request::plain("")).unwrap_err().to_string();
    assert_eq!(error.matches("heap.conf comes after 50-megapage.conf").count(), 1, "{error}");
    fs::rename(
        root.path(&format!("{ETC}/elasticsearch.service.d/heap.conf")),
        root.path(&format!("{ETC}/elasticsearch.service.d/10-heap.conf")),
    )
    .unwrap();
    let change = root.enable("elasticsearch", Request::plain("")).unwrap();
    let line = "Environment=\"ES_JAVA_OPTS=-Xms1g -Xmx1g -XX:+UseTransparentHugePages\"";
    assert_eq!(added(&change), [line], "what was there stays");
    root.write("etc/default/elasticsearch", "#ES_JAVA_OPTS=\nES_JAVA_OPTS=-Xmx2g\n");
    let error = root.enable("elasticsearch", Request::plain("")).unwrap_err().to_string();
    assert!(error.contains("etc/default/elasticsearch sets ES_JAVA_OPTS"), "{error}");
}

#[test]
fn units_are_found_by_name_alias_and_program() {
    let root = Root::new();
    assert_eq!(root.find("dynamic.service").unwrap().as_str(), "dynamic.service");
    symlink("/usr/lib/systemd/system/redis-server.service", root.path(&format!("{ETC}/redis.service")))
        .unwrap();
    assert_eq!(root.find("redis").unwrap().as_str(), "redis-server.service");
    assert_eq!(root.find("mariadbd").unwrap().as_str(), "mariadb.service");
    assert_eq!(root.find("/usr/bin/valkey-server").unwrap().as_str(), "valkey-server.service");
    assert!(root.find("nothing").unwrap_err().to_string().starts_with("there is no service 'nothing'"));
    let several = root.find("/usr/bin/redis-server").unwrap_err().to_string();
    assert!(several.contains("redis-server.service, redis-server@.service"), "{several}");
    assert!(root.find("dynamic.socket").unwrap_err().to_string().contains("such as dynamic.service"));
}

#[test]
fn files_of_others_and_changed_ones_are_left_alone() {
    let root = Root::new();
    let path = format!("{ETC}/dynamic.service.d/50-megapage.conf");
    root.write(&path, "[Service]\nNice=5\n");
    let name = UnitName::parse("dynamic").unwrap();
    for error in
        [root.enable("dynamic", without_thp()).unwrap_err(), disable(root.0.path(), &name).unwrap_err()]
    {
        assert!(matches!(error, SystemdError::NotOurs(_)), "{error}");
    }
    fs::remove_file(root.path(&path)).unwrap();
    assert!(matches!(disable(root.0.path(), &name).unwrap_err(), SystemdError::NotEnabled { .. }));
    root.enable("dynamic", without_thp()).unwrap().apply().unwrap();
    let again = root.enable("dynamic", without_thp()).unwrap();
    assert!(again.is_no_op() && again.commands().is_empty());
    let written = fs::read_to_string(root.path(&path)).unwrap();
    fs::write(root.path(&path), written + "Nice=5\n").unwrap();
    assert!(matches!(disable(root.0.path(), &name).unwrap_err(), SystemdError::Changed(_)));
}

#[test]
fn what_comes_after_the_drop_in_and_undoes_it_is_named() {
    let root = Root::new();
    root.write(
        &format!("{ETC}/dynamic.service.d/override.conf"),
        "[Service]\nExecStart=\nExecStart=/usr/bin/dynamic --other\n",
    );
    let error = root.enable("dynamic", without_thp()).unwrap_err().to_string();
    assert!(
        error.contains("override.conf comes after 50-megapage.conf and sets ExecStart= again"),
        "{error}"
    );
    let text =
        Request { text: TextRequest { kind: Text::Thp, ..TextRequest::default() }, ..Request::plain("") };
    let error = root.enable("dynamic", text).unwrap_err().to_string();
    assert!(error.contains("use --text file"), "{error}");
}

#[test]
fn the_diff_applies_as_patch_reads_it() {
    let root = Root::new();
    let change = root.enable("dynamic", without_thp()).unwrap();
    let diff = change.diff();
    let lines = change.after.as_ref().unwrap().lines().count();
    let head = format!(
        "--- /dev/null\n+++ {}\n@@ -0,0 +1,{lines} @@\n+# Written by megapage",
        change.path.display()
    );
    assert!(diff.starts_with(&head), "{diff}");
    change.apply().unwrap();
    let off = disable(root.0.path(), change.name()).unwrap();
    assert!(off.diff().contains(&format!("\n+++ /dev/null\n@@ -1,{lines} +0,0 @@\n-#")), "{}", off.diff());
}

#[test]
fn switching_off_leaves_the_tree_as_it_was() {
    let units = [
        "redis-server",
        "redis-server@x",
        "memcached",
        "mariadb",
        "postgresql@15-main",
        "valkey-server",
        "dynamic",
        "elasticsearch",
    ];
    let mut random = Pcg64Mcg::new(19);
    for round in 0..25 {
        let root = Root::new();
        for unit in units {
            let directory = format!("{ETC}/{unit}.service.d");
            match random.next_u64() % 4 {
                0 => fs::create_dir_all(root.path(&directory)).unwrap(),
                1 => root.write(&format!("{directory}/10-a.conf"), "[Service]\nNice=1\nEnvironment=A=1\n"),
                2 => root.write(&format!("{directory}/90-z.conf"), "[Service]\nEnvironment=Z=1\n"),
                _ => {}
            }
        }
        let before = root.held();
        let mut order: Vec<&str> =
            units.into_iter().filter(|_| !random.next_u64().is_multiple_of(3)).collect();
        for unit in &order {
            let is_java = *unit == "elasticsearch";
            let request = if is_java { Request::plain("") } else { without_thp() };
            let change = root.enable(unit, request).unwrap();
            change.apply().unwrap();
            assert_eq!(fs::read_to_string(&change.path).unwrap(), *change.after.as_ref().unwrap());
        }
        assert_eq!(root.held().len() > before.len(), !order.is_empty(), "round {round}");
        if random.next_u64().is_multiple_of(2) {
            order.reverse();
        }
        for unit in order {
            disable(root.0.path(), &UnitName::parse(unit).unwrap()).unwrap().apply().unwrap();
        }
        assert!(root.held() == before, "round {round}");
    }
}
