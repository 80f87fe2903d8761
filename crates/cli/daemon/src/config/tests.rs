use super::*;

fn error(text: &str) -> String {
    Config::parse("/etc/x.toml", text).unwrap_err().to_string()
}

#[test]
fn an_empty_file_is_the_default_and_the_default_is_sound() {
    assert_eq!(Config::parse("x", "").unwrap(), Config::default());
    Config::default().check().unwrap();
}

#[test]
fn what_is_written_is_read_as_the_same() {
    let mut config = Config { policy: "megapage".into(), on_exit: OnExit::Undo, ..Config::default() };
    config.processes.include = vec!["^redis".into(), "java".into()];
    config.observe.own_percent = 2.5;
    config.limits.back_off = Duration::from_millis(1500);
    config.claims = vec![Claim {
        name: Some("redis-server".into()),
        cgroup: None,
        weight: 2.0,
        cap: Some(Bytes::gib(4)),
        least: Some(Bytes::mib(10)),
    }];
    assert_eq!(Config::parse("x", &config.to_toml()).unwrap(), config, "{}", config.to_toml());
    assert_eq!(Config::parse("x", &Config::default().to_toml()).unwrap(), Config::default());
}

#[test]
fn errors_name_file_line_and_remedy() {
    assert!(error("policy = \"ingenss\"").starts_with("/etc/x.toml:1: policy: there is no policy 'ingenss'"));
    assert!(error("\npolicy = 3").starts_with("/etc/x.toml:2: invalid type"), "{}", error("\npolicy = 3"));
    let unknown = error("interval = \"1s\"\n[observe]\nwindows = \"1s\"\n");
    assert!(unknown.starts_with("/etc/x.toml:3: unknown field `windows`"), "{unknown}");
    let time = error("[observe]\nwindow = \"0ms\"");
    assert_eq!(time, "/etc/x.toml:2: observe.window: 0ms is not from 10ms to 1m");
    assert!(error("interval = \"soon\"").contains("write it like 250ms"));
    assert!(error("[processes]\nleast_resident = \"64q\"").contains("unknown unit"));
    assert!(
        error("[processes]\ninclude = [\"*\"]").contains("x.toml:2: processes.include: '*' is not a regular")
    );
    assert!(error("[processes]\nusers = [\"no-such-user-here\"]").contains("no user 'no-such-user-here'"));
    assert!(error("[observe]\nbudget_percent = nan").contains("not above 0"));
    assert!(error("[[claim]]\nweight = 1.0").contains("either a name or a cgroup"));
    assert!(error("[[claim]]\nname = \"a\"\ncap = \"1g\"\nleast = \"2g\"").contains(":4: claim.least"));
    assert!(error("policy = \"linux\"\n[[claim]]\nname = \"a\"").contains("only policy 'megapage'"));
    let pace = |text: &str| error(&format!("policy = \"ingens\"\n[pace]\n{text}"));
    assert_eq!(pace("regions = 0"), "/etc/x.toml:3: pace.regions: 0 is not from 1 to 65536");
    assert_eq!(pace("interval = \"5ms\""), "/etc/x.toml:3: pace.interval: 5ms is not from 10ms to 1h");
    assert!(pace("every = \"5s\"").starts_with("/etc/x.toml:3: unknown field `every`"));
    let own = error("[pace]\nregions = 16");
    assert!(own.starts_with("/etc/x.toml:1: pace: only published policies have a pace"), "{own}");
    assert!(error("[act]\nlatency_guard = \"0ms\"").contains("act.latency_guard"));
    assert!(error("[limits]\nleast_zeros = 0").contains(":2: limits.least_zeros: must be from 1 to 512"));
    assert!(error("on_exit = \"maybe\"").contains("unknown variant"));
    for text in ["policy = ", "[[[", "\u{0}", "a = 1"] {
        assert_eq!(error(text).lines().count(), 1, "{text}");
    }
}

#[test]
fn a_missing_file_is_the_default_or_an_error() {
    let path = Path::new("/nonexistent/daemon.toml");
    assert_eq!(Config::read(path, false).unwrap(), Config::default());
    let error = Config::read(path, true).unwrap_err().to_string();
    assert!(error.starts_with("/nonexistent/daemon.toml: cannot be read: No such file"), "{error}");
}

#[test]
fn only_a_regular_file_or_the_callers_own_pipe_is_read() {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    let directory = tempfile::tempdir().unwrap();
    let (pipe, long) = (directory.path().join("pipe"), directory.path().join("long"));
    assert!(std::process::Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    std::fs::File::create(&long).unwrap().set_len(1 << 40).unwrap();
    for (path, why) in [
        (pipe.as_path(), "not a regular file"),
        (&long, "longer than"),
        (Path::new("/dev/zero"), "not a regular"),
    ] {
        let error = Config::read(path, true).unwrap_err().to_string();
        assert!(error.contains(": cannot be read: ") && error.contains(why), "{error}");
        assert_eq!(error.lines().count(), 1, "{error}");
    }
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"interval = '7s'").unwrap();
    drop(writer);
    let own = format!("/dev/fd/{}", reader.as_raw_fd());
    assert_eq!(Config::read(Path::new(&own), true).unwrap().interval, Duration::from_secs(7));
    let again = Config::reread(Path::new(&own), true).unwrap_err().to_string();
    assert!(again.ends_with("cannot be read: not a regular file"), "{again}");
}

#[test]
fn every_policy_can_be_made() {
    for known in megapage_decide::POLICIES {
        let config = Config { policy: known.name.into(), ..Config::default() };
        config.check().unwrap();
        assert_eq!(config.make_policy().unwrap().name(), known.name);
    }
}

#[test]
fn a_key_that_is_gone_warns_in_one_line_and_has_no_effect() {
    let use_thp = ", and use megapage thp persist enabled=always";
    for (table, key) in GONE {
        let text = format!("nice = 3\n[{table}]\n{key} = 'whatever'\n");
        let config = Config::parse("/etc/x.toml", &text).unwrap();
        let instead = if table == "thp" { use_thp } else { "" };
        assert_eq!(
            config.ignored,
            [format!("/etc/x.toml:3: {table}.{key} has no effect any more: delete it{instead}")]
        );
        assert_eq!(Config { ignored: Vec::new(), ..config }, Config { nice: 3, ..Config::default() });
        assert!(!Config::default().to_toml().contains(&format!("\n{key} =")), "{table}.{key} is no option");
        let wrong = error(&format!("{text}[observe]\nwindows = 1\n"));
        assert!(wrong.contains("unknown field `windows`"), "others are still errors: {wrong}");
    }
    let inline = Config::parse("x", "act = { call = '1ms', time = '1s' }").unwrap();
    assert_eq!((inline.ignored.len(), inline.act.time), (1, Duration::from_secs(1)));
    let empty = Config::parse("x", "nice = 3\n[thp]\n# enabled = 'always'\n[shares]\n[act]\n").unwrap();
    let delete = "has no effect any more: delete it";
    assert_eq!(empty.ignored, [format!("x:4: shares {delete}"), format!("x:2: thp {delete}{use_thp}")]);
    assert_eq!(empty.nice, 3);
}

#[test]
fn a_tracker_that_is_gone_warns_and_the_best_is_taken_but_an_unknown_one_is_refused() {
    for gone in ["damon-virtual", "smaps"] {
        let config = Config::parse("/etc/x.toml", &format!("[observe]\ntracker = '{gone}'")).unwrap();
        assert_eq!(config.ignored, ["/etc/x.toml:2: observe.tracker has no effect any more: delete it"]);
        assert_eq!((config.tracker(), config.observe), (None, Observe::default()));
    }
    assert_eq!(Config::parse("x", "[observe]\ntracker = 'pagemap'").unwrap().ignored, [""; 0]);
    let others = "it is \"\" or one of bpf, idle-pages, pagemap";
    assert_eq!(
        error("[observe]\ntracker = 'damon'"),
        format!("/etc/x.toml:2: observe.tracker: there is no tracker 'damon'; {others}")
    );
}
