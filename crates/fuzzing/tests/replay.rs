//! Every seed and every input that has ever failed, on stable: `fixtures/fuzz/TARGET/`.

use megapage_fuzzing::TARGETS;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn top(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

fn names(directory: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(directory).unwrap_or_else(|error| panic!("{}: {error}", directory.display()));
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn every_seed_and_every_past_failure_holds() {
    let (mut inputs, mut failed) = (0, Vec::new());
    for target in TARGETS {
        let directory = top("fixtures/fuzz").join(target.name);
        let found = names(&directory);
        assert!(found.iter().any(|name| name.starts_with("seed")), "{} has no seed", target.name);
        (target.run)(b"");
        for name in &found {
            let data = fs::read(directory.join(name)).unwrap();
            // Whatever was cut off, or follows: the cheapest of all mutations.
            for length in [data.len(), data.len().saturating_sub(1), data.len() / 2, data.len() / 3] {
                if std::panic::catch_unwind(|| (target.run)(&data[..length])).is_err() {
                    failed.push(format!("fixtures/fuzz/{}/{name}, its first {length} bytes", target.name));
                }
            }
            inputs += 1;
        }
    }
    assert!(inputs >= TARGETS.len());
    assert!(failed.is_empty(), "what is wrong with each is said above:\n{}", failed.join("\n"));
}

/// A target without a fuzzer, a fuzzer without a target or seeds of neither would go unseen.
#[test]
fn each_target_has_its_fuzzer_and_its_seeds() {
    let targets: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_string()).collect();
    assert_eq!(targets.len(), TARGETS.len(), "each name once");
    assert_eq!(names(&top("fixtures/fuzz")), targets);
    let files: BTreeSet<String> = targets.iter().map(|name| format!("{name}.rs")).collect();
    assert_eq!(names(&top("fuzz/fuzz_targets")), files);
    let manifest = fs::read_to_string(top("fuzz/Cargo.toml")).unwrap();
    for name in &targets {
        let entry = format!("[[bin]]\nname = \"{name}\"\npath = \"fuzz_targets/{name}.rs\"\n");
        assert!(manifest.contains(&entry), "fuzz/Cargo.toml lacks {name}");
        let text = fs::read_to_string(top("fuzz/fuzz_targets").join(format!("{name}.rs"))).unwrap();
        assert!(text.contains(&format!("::{name}(data)")), "fuzz_targets/{name}.rs calls another target");
    }
}
