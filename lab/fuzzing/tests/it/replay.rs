//! Replay of every seed and every input that has ever failed, on stable: `fixtures/fuzz/TARGET/`.

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

/// Number of changes of each kind to an input.
const CHANGES: usize = 8;

/// Returns the mutations of an input that need no fuzzer, always the same. The input is unchanged,
/// cut off, doubled, with single numbers at the end of their range, or with single bytes changed.
fn variants(data: &[u8]) -> Vec<(String, Vec<u8>)> {
    let mut all =
        vec![("as it is".to_string(), data.to_vec()), ("doubled".to_string(), [data, data].concat())];
    for length in [data.len().saturating_sub(1), data.len() / 2, data.len() / 3] {
        all.push((format!("its first {length} bytes"), data[..length].to_vec()));
    }
    let is_first = |at: &usize| data[*at].is_ascii_digit() && (*at == 0 || !data[*at - 1].is_ascii_digit());
    let values: Vec<usize> = (0..data.len()).filter(is_first).collect();
    for at in evenly(&values) {
        let length = data[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
        let changed = [&data[..at], b"18446744073709551615", &data[at + length..]].concat();
        all.push((format!("its value at byte {at} made 2^64 - 1"), changed));
    }
    for at in evenly(&(0..data.len()).collect::<Vec<_>>()) {
        let mut changed = data.to_vec();
        changed[at] = if at % 2 == 0 { 0xff } else { changed[at] ^ 1 };
        all.push((format!("its byte {at} changed"), changed));
    }
    all
}

/// Returns at most [`CHANGES`] of them.
fn evenly(places: &[usize]) -> impl Iterator<Item = usize> {
    places.iter().copied().step_by(places.len().div_ceil(CHANGES).max(1))
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
            for (what, variant) in variants(&data) {
                if std::panic::catch_unwind(|| (target.run)(&variant)).is_err() {
                    failed.push(format!("fixtures/fuzz/{}/{name}, {what}", target.name));
                }
            }
            inputs += 1;
        }
    }
    assert!(inputs >= TARGETS.len());
    assert!(failed.is_empty(), "what is wrong with each is said above:\n{}", failed.join("\n"));
}

/// Checks that no target is without a fuzzer or seeds, and no fuzzer without a target.
#[test]
fn each_target_has_its_fuzzer_and_its_seeds() {
    let targets: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_string()).collect();
    assert_eq!(targets.len(), TARGETS.len(), "each name once");
    assert_eq!(names(&top("fixtures/fuzz")), targets);
    let manifest = fs::read_to_string(top("fuzz/Cargo.toml")).unwrap();
    let fuzzers: BTreeSet<String> = manifest
        .split("[[bin]]\nname = \"")
        .skip(1)
        .map(|bin| {
            let (name, bin) = bin.split_once('"').unwrap();
            assert!(bin.starts_with("\npath = \"fuzz_targets/target.rs\"\n"), "{name} has another source");
            name.to_string()
        })
        .collect();
    assert_eq!(fuzzers, targets, "fuzz/Cargo.toml");
}
