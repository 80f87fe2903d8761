//! `megapage enable` and `disable` as a user meets them, on units below a separate root.

use crate::run_support;
use crate::user;

use run_support::library;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use user::{MEGAPAGE, Said, said};

struct Root(tempfile::TempDir);

impl Root {
    fn new() -> Root {
        let root = Root(tempfile::tempdir().unwrap());
        let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/units");
        let units = root.path("usr/lib/systemd/system");
        fs::create_dir_all(&units).unwrap();
        fs::create_dir_all(root.path("etc/systemd/system")).unwrap();
        for entry in fs::read_dir(fixtures).unwrap() {
            let path = entry.unwrap().path();
            let unit = fs::read_to_string(&path).unwrap();
            // These lines would hide the launcher and the library if the tree is below /home or
            // /tmp. Installed ones never are.
            let hides = |line: &&str| line.starts_with("PrivateTmp=") || line.starts_with("ProtectHome=");
            let kept: Vec<&str> = unit.lines().filter(|line| !hides(line)).collect();
            fs::write(units.join(path.file_name().unwrap()), kept.join("\n") + "\n").unwrap();
        }
        // Any program with glibc's loader will do.
        for program in [
            "bin/redis-server",
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

    fn text(&self) -> &str {
        self.0.path().to_str().unwrap()
    }

    fn drop_in(&self, unit: &str) -> PathBuf {
        self.path("etc/systemd/system").join(format!("{unit}.service.d/50-megapage.conf"))
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(MEGAPAGE);
        command.args(arguments).args(["--root", self.text()]).env("MEGAPAGE_LIBRARY", library());
        command
    }

    fn megapage(&self, arguments: &[&str]) -> Said {
        said(self.command(arguments).output().unwrap())
    }

    fn done(&self, arguments: &[&str]) -> String {
        let said = self.megapage(arguments);
        assert_eq!((said.status, said.err.as_str()), (0, ""), "{arguments:?}: {}", said.out);
        said.out
    }

    fn refused(&self, arguments: &[&str], expected: &str) {
        let said = self.megapage(arguments);
        assert_eq!((said.status, said.out.as_str()), (2, ""), "{arguments:?}: {}", said.err);
        assert!(
            said.err.starts_with("megapage: ") && said.err.contains(expected),
            "{arguments:?}: {}",
            said.err
        );
        assert_eq!(said.err.lines().count(), 1, "{arguments:?}: {}", said.err);
    }
}

#[test]
fn bad_input_is_named_in_one_line() {
    let root = Root::new();
    root.refused(
        &["enable", "nothing-here"],
        "there is no service 'nothing-here', and none starts a program of that name",
    );
    root.refused(&["enable", "a b"], "'a b' is not the name of a unit");
    root.refused(&["enable", "dynamic.socket"], "such as dynamic.service");
    root.refused(
        &["enable", "/usr/bin/redis-server"],
        "name one of redis-server.service, redis-server@.service",
    );
    root.refused(
        &["enable", "dynamic", "--thp", "sometimes"],
        "'sometimes' is none of settings, never, advised",
    );
    root.refused(&["enable", "dynamic", "--thp", "never", "--heap", "thp"], "exclude each other");
    root.refused(&["enable", "dynamic", "--heap", "none"], "nothing reaches dynamic from within its service");
    root.refused(&["enable", "dynamic", "--text", "2m"], "use --text file");
    root.refused(&["enable", "dynamic", "--pool", "--heap", "none"], "a value is required");
    root.refused(&["enable", "dynamic", "--pool", "x", "--heap", "none"], "leave one out");
    root.refused(
        &["enable", "dynamic", "--fork", "snapshot", "--heap", "2m"],
        "--fork snapshot and --heap 2m",
    );
    root.refused(&["disable", "dynamic"], "is not enabled: there is no");
    root.refused(&["disable", "../x"], "'../x'");
    root.refused(
        &["enable", "elasticsearch", "--mechanism", "preload"],
        "ES_JAVA_OPTS is all that reaches it",
    );
    assert_eq!(fs::read_dir(root.path("etc/systemd/system")).unwrap().count(), 0, "nothing was written");
    let said = said(Command::new(MEGAPAGE).args(["enable", "x", "--root", "/nonexistent"]).output().unwrap());
    assert_eq!((said.status, said.err.lines().count()), (2, 1), "{}", said.err);
}

#[test]
fn a_service_is_switched_on_by_its_environment_and_off_again() {
    let root = Root::new();
    let dry = root.done(&["enable", "redis-server", "--dry-run"]);
    assert!(!root.drop_in("redis-server").exists() && dry.contains("\n+++ "), "{dry}");
    let out = root.done(&["enable", "redis-server"]);
    assert!(out.starts_with("redis-server.service: by its environment: "), "{out}");
    let text = fs::read_to_string(root.drop_in("redis-server")).unwrap();
    let lines: Vec<&str> = text.lines().skip_while(|line| *line != "[Service]").skip(1).collect();
    let library = fs::canonicalize(library()).unwrap();
    let library = library.to_str().unwrap();
    assert_eq!(lines[0], format!("Environment=LD_PRELOAD={library}"));
    for line in [
        "Environment=MEGAPAGE_HEAP=thp",
        "Environment=MEGAPAGE_FORK=snapshot",
        "Environment=MEGAPAGE_POPULATE=1",
        "Environment=MEGAPAGE_FILTERS=any",
    ] {
        assert!(lines.contains(&line), "{line}: {text}");
    }
    // Debian's unit allows neither the system call nor the mapping of the library.
    assert!(lines.contains(&"SystemCallFilter=mincore"), "{text}");
    assert!(lines.contains(&&*format!("ExecPaths={library}")), "{text}");
    assert!(!text.contains("ExecStart"), "{text}");
    assert!(out.contains("disable-thp no"), "{out}");
    assert!(dry.contains(&text), "the shell lines write the same");
    assert!(root.done(&["enable", "redis-server"]).contains("is already as requested"));
    let off = root.done(&["disable", "redis-server", "--dry-run"]);
    assert!(off.contains("\nrm ") && off.contains("\nrmdir "), "{off}");
    root.done(&["disable", "redis-server"]);
    assert_eq!(fs::read_dir(root.path("etc/systemd/system")).unwrap().count(), 0);
    root.refused(&["disable", "redis-server"], "is not enabled");
}

#[test]
fn scripts_are_looked_behind() {
    let root = Root::new();
    for (unit, program, children) in [
        ("memcached", "usr/bin/memcached", false),
        ("mariadb", "usr/sbin/mariadbd", false),
        ("postgresql@15-main", "usr/lib/postgresql/15/bin/postgres", true),
    ] {
        let out = root.done(&["enable", unit, "--json"]);
        assert!(
            out.contains("\"schema\": \"megapage.enable/1\"") && out.contains("\"way\": \"environment\""),
            "{out}"
        );
        assert!(out.contains(&format!("{program}\"")), "{out}");
        let text = fs::read_to_string(root.drop_in(unit)).unwrap();
        assert_eq!(text.contains("MEGAPAGE_CHILDREN=1"), children, "{text}");
        assert!(!text.contains("ExecStart"), "{text}");
        root.done(&["disable", unit]);
    }
}

#[test]
fn transparent_huge_pages_are_switched_off_for_one_service() {
    let root = Root::new();
    let out = root.done(&["enable", "dynamic", "--thp", "never"]);
    assert!(out.starts_with("dynamic.service: by the launcher"), "{out}");
    let text = fs::read_to_string(root.drop_in("dynamic")).unwrap();
    let own = fs::canonicalize(MEGAPAGE).unwrap();
    let line =
        format!("ExecStart={} run --thp never -- /usr/bin/dynamic --listen fd:// $OPTIONS", own.display());
    assert!(text.lines().any(|it| it == line), "{text}");
    root.done(&["disable", "dynamic"]);
}

#[test]
fn a_run_without_thp_passes_that_on() {
    let enabled = |thp: &str| {
        let mut command = Command::new(MEGAPAGE);
        command.args(["run", "--thp", thp, "--", "grep", "THP_enabled", "/proc/self/status"]);
        said(command.env("MEGAPAGE_LIBRARY", library()).output().unwrap())
    };
    let never = enabled("never");
    assert_eq!((never.status, never.out.trim()), (0, "THP_enabled:\t0"), "{}", never.err);
    assert_eq!(enabled("settings").out.trim(), "THP_enabled:\t1");
    let advised = enabled("advised");
    let lacking = advised.status == 125 && advised.err.contains("--thp advised: this kernel lacks");
    assert!(advised.status == 0 || lacking, "{advised:?}");
    // The name that the program sees.
    let mut command = Command::new(MEGAPAGE);
    command.args(["run", "--argv0", "another", "--", "sh", "-c", "echo $0"]);
    assert_eq!(said(command.output().unwrap()).out, "another\n");
}

#[test]
fn all_services_are_taken_off_at_once() {
    let root = Root::new();
    assert_eq!(root.done(&["disable", "--all"]), "");
    for unit in ["redis-server", "dynamic", "memcached"] {
        root.done(&["enable", unit]);
    }
    root.refused(&["disable", "--all", "dynamic"], "cannot be used with");
    // An edited drop-in stays, and is named. A drop-in of another program is not touched.
    let edited = fs::read_to_string(root.drop_in("memcached")).unwrap() + "Nice=1\n";
    fs::write(root.drop_in("memcached"), &edited).unwrap();
    fs::create_dir_all(root.drop_in("other").parent().unwrap()).unwrap();
    fs::write(root.drop_in("other"), "[Service]\nNice=1\n").unwrap();
    let said = root.megapage(&["disable", "--all"]);
    assert_eq!(said.status, 1, "{said:?}");
    assert!(said.err.contains("memcached.service.d") && said.err.contains("was changed"), "{said:?}");
    let off = "is off again from its next start on\n";
    assert_eq!(said.out, format!("dynamic.service: {off}redis-server.service: {off}"));
    let left = |unit: &str| root.drop_in(unit).exists();
    assert_eq!((left("dynamic"), left("redis-server"), left("memcached")), (false, false, true));
    assert!(left("other"));
    fs::remove_file(root.drop_in("memcached")).unwrap();
    assert_eq!(root.done(&["disable", "--all"]), "");
}

#[test]
fn another_ones_drop_in_stays() {
    let root = Root::new();
    let path = root.drop_in("dynamic");
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, "[Service]\nNice=1\n").unwrap();
    for command in ["enable", "disable"] {
        root.refused(&[command, "dynamic"], "was not written by megapage");
    }
    assert_eq!(fs::read_to_string(&path).unwrap(), "[Service]\nNice=1\n");
    std::os::unix::fs::symlink("/etc/passwd", path.with_file_name("link")).unwrap();
    fs::rename(path.with_file_name("link"), &path).unwrap();
    for command in ["enable", "disable"] {
        root.refused(&[command, "dynamic"], "50-megapage.conf");
    }
    assert!(path.is_symlink());
}

#[test]
fn status_lists_what_is_enabled() {
    let root = Root::new();
    assert!(root.done(&["status"]).starts_with("No service is enabled"));
    root.done(&["enable", "redis-server", "--heap", "thp"]);
    root.done(&["enable", "postgresql@"]);
    let all = root.done(&["status"]);
    assert!(all.contains("redis-server.service") && all.contains("postgresql@.service"), "{all}");
    assert!(all.contains("redis-server.service: options --heap thp"), "{all}");
    let one = root.done(&["status", "redis-server", "--json"]);
    assert!(one.contains("megapage.status/1") && !one.contains("postgresql"), "{one}");
    root.refused(&["status", "dynamic"], "is not enabled");
    let path = root.drop_in("redis-server");
    let text = fs::read_to_string(&path).unwrap();
    fs::write(&path, text + "Nice=1\n").unwrap();
    assert!(root.done(&["status"]).contains("was changed since megapage wrote it"));
    root.refused(&["disable", "redis-server"], "was changed after megapage wrote it");
}
