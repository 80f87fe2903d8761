use super::*;
use std::fs;

/// Returns the directory of the settings.
fn thp() -> String {
    path("").trim_end_matches('/').into()
}

fn machine() -> (tempfile::TempDir, KernelRoot) {
    let top = tempfile::tempdir().unwrap();
    for (name, text) in [
        ("enabled", "always [madvise] never"),
        ("shmem_enabled", "always within_size advise [never] deny force"),
        ("khugepaged/max_ptes_none", "511"),
        ("hugepages-64kB/enabled", "always inherit madvise [never]"),
        ("hugepages-64kB/shmem_enabled", "always inherit within_size advise [never]"),
    ] {
        let path = top.path().join(path(name).trim_start_matches('/'));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let root = KernelRoot::captured(top.path());
    (top, root)
}

fn steps(kernel: &KernelRoot, wanted: &[&str]) -> Result<Vec<Step>, ThpError> {
    plan(kernel, &wanted.iter().map(ToString::to_string).collect::<Vec<_>>())
}

#[test]
fn names_values_and_short_forms_are_checked() {
    let (_keep, kernel) = machine();
    let found =
        steps(&kernel, &["enabled=always", "64k=inherit", "64k/shmem=advise", "khugepaged/max_ptes_none=0"])
            .unwrap();
    let pairs: Vec<(&str, &str)> = found.iter().map(|it| (it.name.as_str(), it.after.as_str())).collect();
    assert_eq!(
        pairs,
        [
            ("enabled", "always"),
            ("hugepages-64kB/enabled", "inherit"),
            ("hugepages-64kB/shmem_enabled", "advise"),
            ("khugepaged/max_ptes_none", "0"),
        ]
    );
    for (wanted, said) in [
        (&["enabled"][..], "'enabled' is not a setting"),
        (&["enabled=sometimes"], "enabled: 'sometimes' is not one of always, madvise, never"),
        (&["khugepaged/max_ptes_none=x"], "'x' is not a number"),
        (&["../x=1"], "no setting '../x'; it has enabled, "),
        (&["32k=always"], "no setting '32k'"),
        (&["enabled=never", "enabled=always"], "enabled is given twice"),
        (&[], "no setting is named"),
    ] {
        let error = steps(&kernel, wanted).unwrap_err().to_string();
        assert!(error.contains(said), "{error}");
    }
    let none = tempfile::tempdir().unwrap();
    assert!(matches!(get(&KernelRoot::captured(none.path())), Err(ThpError::NoThp)));
}

#[test]
fn what_is_kept_is_written_removed_and_not_anothers() {
    let (top, kernel) = machine();
    let found = steps(&kernel, &["enabled=always"]).unwrap();
    let kept = persist(&kernel, top.path(), &found).unwrap();
    assert!(kept.notes.is_empty(), "{:?}", kept.notes);
    kept.apply().unwrap();
    let file = top.path().join(TMPFILES);
    assert_eq!(fs::read_to_string(&file).unwrap(), format!("{MARKER}\nw {}/enabled - - - - always\n", thp()));
    assert!(persist(&kernel, top.path(), &found).unwrap().is_no_op());
    persist(&kernel, top.path(), &[]).unwrap().apply().unwrap();
    assert!(!file.exists() && persist(&kernel, top.path(), &[]).unwrap().is_no_op());
    fs::write(&file, "w x\n").unwrap();
    assert!(matches!(persist(&kernel, top.path(), &found), Err(ThpError::NotOurs(_))));
}

#[test]
fn what_sets_the_same_is_named() {
    let (top, kernel) = machine();
    let thp = thp();
    for (path, text) in [
        ("etc/tmpfiles.d/10-first.conf", format!("w {thp}/enabled - - - - never\n")),
        ("usr/lib/tmpfiles.d/90-last.conf", format!("w {thp}/enabled - - - - never\n")),
        ("usr/lib/tmpfiles.d/80-none.conf", format!("# w {thp}/enabled - - - - never\n")),
        ("etc/tuned/active_profile", "mine\n".into()),
        ("etc/tuned/mine/tuned.conf", "[main]\ninclude=throughput\n".into()),
        ("usr/lib/tuned/throughput/tuned.conf", "[vm]\ntransparent_hugepages=never\n".into()),
        (
            "etc/systemd/system/disable-thp.service",
            format!("[Service]\nExecStart=/bin/sh -c 'echo never > {thp}/enabled'\n"),
        ),
    ] {
        let path = top.path().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    let notes = persist(&kernel, top.path(), &steps(&kernel, &["enabled=always"]).unwrap()).unwrap().notes;
    assert_eq!(notes.len(), 4, "{notes:#?}");
    assert!(notes[0].contains("10-first.conf sets enabled too: of the two that one counts"), "{notes:?}");
    assert!(notes[1].contains("90-last.conf sets enabled too: of the two ours counts"), "{notes:?}");
    assert!(
        notes[2].contains("tuned's profile throughput sets transparent huge pages to never"),
        "{notes:?}"
    );
    assert!(notes[3].contains("disable-thp.service sets"), "{notes:?}");
    let other =
        persist(&kernel, top.path(), &steps(&kernel, &["shmem_enabled=advise"]).unwrap()).unwrap().notes;
    assert_eq!(other.len(), 1, "tuned alone: {other:?}");
}
