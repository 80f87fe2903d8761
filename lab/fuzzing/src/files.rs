//! Our own files to which others may have written: configuration, state, boot loaders' files.

use crate::tree::{Tree, with_file};
use megapage_act::pool::persist::{PersistRequest, forget, persist};
use megapage_act::pool::{Loan, Spec};
use megapage_daemon::{Config, SavedState};
use megapage_kernel::effective_uid;
use megapage_kernel::thp::ThpEnabled;
use megapage_observe::cost::calibrate::AccessTimes;
use megapage_units::{Bytes, PageSize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Reads the daemon's configuration: an accepted one can be used, and written out it is the same.
pub fn config(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let config = match Config::parse("daemon.toml", &text) {
        Ok(config) => config,
        Err(error) => {
            let message = error.to_string();
            assert!(message.starts_with("daemon.toml") && !message.contains('\n'), "one line: {message:?}");
            return;
        }
    };
    let written = config.to_toml();
    let config = Config { ignored: Vec::new(), ..config };
    assert_eq!(
        Config::parse("written", &written).as_ref(),
        Ok(&config),
        "what is written is read:\n{written}"
    );
    assert!(config.make_policy().is_some(), "an accepted policy is known");
    let _ = (config.tracker(), config.act.budgets(), config.limits.of_decide());
    let mut chosen = config;
    chosen.choose(&["12".into(), "99999999999".into(), "name".into()]);
}

/// Reads the daemon's state of a former run: it is written, and read again the same.
pub fn state(data: &[u8]) {
    const FILE: &str = "state.json";
    const BOOT: &str = "b";
    let uid = effective_uid();
    with_file(FILE, data, |root| {
        let path = root.path(FILE);
        let Ok(read) = SavedState::read(&path, BOOT, uid) else { return };
        // A file in another format than a daemon's is read, and not replaced.
        std::fs::remove_file(&path).expect("it was read");
        read.write(&path, BOOT).expect("nothing is in its place");
        let again = SavedState::read(&path, BOOT, uid).expect("what is written is read");
        assert_eq!(again, read);
    });
}

/// Reads timings of the machine that are cached until the next boot: accepted ones are valid
/// numbers.
pub fn access_times(data: &[u8]) {
    let Some(times) = AccessTimes::of_cached(data) else { return };
    assert!(!times.is_guess() && !times.steps().is_empty(), "{times:?}");
    assert!(times.steps().is_sorted_by(|less, more| less.bytes < more.bytes), "{times:?}");
    for timed in times.steps().iter().flat_map(|step| step.overlapping.iter().chain([&step.stream])) {
        let [low, high] = timed.ratio;
        let all = [timed.base, timed.huge, low, high, timed.saving()];
        assert!(all.iter().all(|value| value.is_finite() && *value >= 0.0), "{timed:?}");
    }
}

/// Reads the note of pages that a former owner has added to a pool, `NAME.added`: never more than
/// the pool has.
pub fn loan(data: &[u8]) {
    let tree = Tree::new();
    let pool = "sys/kernel/mm/hugepages/hugepages-2048kB";
    for (file, number) in [
        ("nr_hugepages", "20\n"),
        ("free_hugepages", "20\n"),
        ("resv_hugepages", "0\n"),
        ("surplus_hugepages", "0\n"),
        ("nr_overcommit_hugepages", "0\n"),
    ] {
        tree.write(format!("{pool}/{file}"), number.as_bytes());
    }
    tree.write("proc/sys/kernel/random/boot_id", b"b\n");
    tree.write("run/name.added", data);
    let loan = Loan::take_over(&tree.root(), &tree.path().join("run/name"), PageSize::HUGE_2M);
    assert!(loan.pages() <= 20, "{} pages", loan.pages());
}

/// Applies pools that are persistent over a boot, in the files of GRUB, systemd-boot and sysctl
/// below a root. Applied once, there is nothing left to do. Forgotten, the boot loaders' files are
/// as before.
///
/// The input: a line of pools, such as `2m=512 1g=0:1,1:1`, with `default-size` and `thp` if these
/// are requested, too; then the files.
pub fn pool_persist(data: &[u8]) {
    let end = data.iter().position(|byte| *byte == b'\n').unwrap_or(data.len());
    let line = String::from_utf8_lossy(&data[..end]);
    let (options, pools): (Vec<&str>, Vec<&str>) =
        line.split_whitespace().take(8).partition(|word| ["default-size", "thp"].contains(word));
    let Ok(pools) = pools.into_iter().map(str::parse).collect::<Result<Vec<Spec>, _>>() else { return };
    let machine = Tree::of(MACHINE.as_bytes());
    let image = Tree::of(&data[end..]);
    let request = PersistRequest {
        pools,
        overcommit: Vec::new(),
        cma: None,
        default_size: options.contains(&"default-size").then_some(PageSize::HUGE_1G),
        thp: options.contains(&"thp").then_some(ThpEnabled::Never),
        at_boot: true,
        loader: None,
        root: image.path().to_path_buf(),
        memory: Some(Bytes::gib(1 << 20)),
    };
    let before = texts(image.path());
    let Ok(plan) = persist(&machine.root(), &request) else { return };
    for edit in &plan.edits {
        let line = format!("{edit:?}");
        assert!(
            line.contains(&format!("{:?}", image.path()).trim_matches('"').to_string()),
            "below the root: {line}"
        );
    }
    if plan.apply().is_err() {
        assert_eq!(texts(image.path()), before, "all is put back");
        return;
    }
    let again = persist(&machine.root(), &request).expect("the same request");
    assert!(again.is_no_op(), "applied once is enough: {:?}", again.edits);
    let Ok(forgotten) = forget(&request) else { return };
    forgotten.apply().expect("what was written can be taken away");
    let words = ["hugepagesz=", "hugepages=", "transparent_hugepage="];
    let after = texts(image.path());
    // Without files of an earlier call the written text is removed, and nothing else.
    let is_ours = |path: &Path| {
        path.strip_prefix(image.path()).is_ok_and(|path| path.to_string_lossy().contains("megapage"))
    };
    if !before.keys().any(|path| is_ours(path)) {
        assert!(before == after, "{before:?} became {after:?}");
    }
    for (path, text) in after.iter().filter(|(path, _)| !before.contains_key(*path)) {
        assert!(!words.iter().any(|word| text.contains(word)), "{} keeps {text}", path.display());
    }
}

/// The pools of a machine with two sizes.
const MACHINE: &str = "==> proc/meminfo <==
MemTotal:       1099511627776 kB
Hugepagesize:       2048 kB
==> sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages <==
0
==> sys/kernel/mm/hugepages/hugepages-1048576kB/nr_hugepages <==
0
==> sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages <==
0
==> sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages <==
0
";

fn texts(directory: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        match entry.path() {
            path if path.is_dir() => found.append(&mut texts(&path)),
            path => {
                let text = std::fs::read(&path).unwrap_or_default();
                found.insert(path, String::from_utf8_lossy(&text).into_owned());
            }
        }
    }
    found
}
