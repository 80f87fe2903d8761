//! Check that dependencies between the crates point one way.

use crate::finding::Finding;
use anyhow::{Context, Result};
use serde_json::Value;
use std::path::Path;

/// For each crate, the crates of this workspace from which it may be built. A crate that is not
/// listed fails the check: its author decides on its place.
const MAY_DEPEND_ON: [(&str, &[&str]); 28] = [
    ("units", &[]),
    ("tlb", &[]),
    ("snapshot", &["units"]),
    ("decide", &["units", "snapshot"]),
    ("plan", &["units", "tlb", "snapshot", "decide"]),
    ("simulate", &["units", "snapshot", "decide", "plan"]),
    ("inside", &["units"]),
    ("kernel", &["units", "tlb", "snapshot", "inside"]),
    ("observe", &["units", "tlb", "snapshot", "kernel"]),
    ("memory", &["units", "inside"]),
    ("remap", &["units", "kernel"]),
    ("segment", &["units", "kernel"]),
    ("act", &["units", "snapshot", "kernel", "observe", "decide"]),
    ("daemon", &["units", "tlb", "snapshot", "kernel", "observe", "decide", "act"]),
    ("broker", &["units", "kernel", "memory", "act"]),
    ("preload", &["units", "inside", "memory"]),
    ("text", &["kernel", "remap"]),
    ("capi", &["units", "kernel", "segment", "remap"]),
    ("launch", &["units", "snapshot", "kernel", "observe", "decide", "act", "memory", "broker", "remap"]),
    ("systemd", &["units", "snapshot", "kernel", "launch"]),
    ("doctor", &["units", "snapshot", "kernel", "observe", "segment", "launch"]),
    ("advise", &["units", "tlb", "snapshot", "kernel", "observe", "act", "launch"]),
    ("record", &["units", "tlb", "snapshot", "kernel", "observe", "launch", "plan"]),
    ("trial", &["units", "snapshot", "kernel", "decide", "act", "launch"]),
    ("bench", &["units", "kernel"]),
    (
        "report",
        &[
            "units", "snapshot", "kernel", "observe", "decide", "act", "launch", "segment", "broker",
            "remap", "plan", "record", "systemd", "doctor", "advise", "daemon", "trial", "bench",
        ],
    ),
    (
        "lab",
        &[
            "units", "snapshot", "kernel", "observe", "decide", "simulate", "act", "bench", "report",
            "segment", "memory", "broker", "testing",
        ],
    ),
    (
        "cli",
        &[
            "units", "snapshot", "kernel", "observe", "decide", "act", "daemon", "launch", "doctor",
            "advise", "bench", "remap", "report", "segment", "broker", "memory", "systemd", "trial", "plan",
            "record",
        ],
    ),
];

/// The only crates that may be built from the libraries that make system calls.
const MAY_CALL_THE_SYSTEM: [&str; 5] = ["inside", "kernel", "preload", "lab", "testing"];
const SYSTEM_LIBRARIES: [&str; 4] = ["libc", "rustix", "nix", "perf-event-open-sys"];

/// The crate that no shipped code links, only tests and the laboratory.
const FOR_TESTS_ONLY: &str = "testing";
/// Crates from which the crate for tests may be built.
const TESTING_MAY_DEPEND_ON: [&str; 5] = ["units", "snapshot", "kernel", "observe", "act"];
/// The fuzz targets: built from all crates, and no crate is built from it.
const FUZZING: &str = "fuzzing";

/// Checks the output of `cargo metadata --no-deps`.
pub fn check(metadata: &str) -> Result<Vec<Finding>> {
    let metadata: Value = serde_json::from_str(metadata).context("cargo metadata printed no JSON")?;
    let root = metadata["workspace_root"].as_str().unwrap_or_default();
    let mut findings = Vec::new();
    for package in metadata["packages"].as_array().context("cargo metadata lists no packages")? {
        let path = package["manifest_path"].as_str().unwrap_or_default();
        let path = Path::new(path).strip_prefix(root).unwrap_or(Path::new(path)).display().to_string();
        let name = package["name"].as_str().unwrap_or_default();
        let Some(krate) = name.strip_prefix("megapage-") else {
            if name != "xtask" {
                findings.push(Finding::new(&path, 1, format!("package {name} is not named megapage-...")));
            }
            continue;
        };
        for dependency in package["dependencies"].as_array().into_iter().flatten() {
            let kind = dependency["kind"].as_str().unwrap_or("normal");
            let on = dependency["name"].as_str().unwrap_or_default();
            if let Some(what) = judge(krate, kind, on) {
                findings.push(Finding::new(&path, 1, what));
            }
        }
        if ![FOR_TESTS_ONLY, FUZZING].contains(&krate) && allowed(krate).is_none() {
            findings.push(Finding::new(
                &path,
                1,
                format!("crate {krate} has no place in the dependency order (xtask/src/tidy/manifest.rs)"),
            ));
        }
    }
    Ok(findings)
}

fn allowed(krate: &str) -> Option<&'static [&'static str]> {
    MAY_DEPEND_ON.iter().find(|(name, _)| *name == krate).map(|(_, on)| *on)
}

/// Returns the reason for which `krate` may not have a dependency of this kind on the package `on`.
fn judge(krate: &str, kind: &str, on: &str) -> Option<String> {
    if SYSTEM_LIBRARIES.contains(&on) && !MAY_CALL_THE_SYSTEM.contains(&krate) {
        return Some(format!("crate {krate} depends on {on}: system calls belong in crates/kernel"));
    }
    let on = on.strip_prefix("megapage-")?;
    if kind == "dev" || krate == FUZZING {
        // A test may use anything.
        return None;
    }
    let allowed = if krate == FOR_TESTS_ONLY { Some(&TESTING_MAY_DEPEND_ON[..]) } else { allowed(krate) };
    (!allowed?.contains(&on)).then(|| {
        format!("crate {krate} must not depend on {on}: see the dependency order in ARCHITECTURE.md")
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(package: &str, dependencies: &[(&str, &str)]) -> Vec<String> {
        let dependencies: Vec<Value> = dependencies
            .iter()
            .map(|(name, kind)| {
                serde_json::json!({ "name": name, "kind": if *kind == "normal" { None } else { Some(kind) } })
            })
            .collect();
        let metadata = serde_json::json!({
            "workspace_root": "/r",
            "packages": [{
                "name": package,
                "manifest_path": format!("/r/crates/{package}/Cargo.toml"),
                "dependencies": dependencies,
            }],
        });
        check(&metadata.to_string()).unwrap().into_iter().map(|f| f.to_string()).collect()
    }

    #[test]
    fn the_order_of_the_crates_is_accepted() {
        assert!(found("megapage-kernel", &[("megapage-units", "normal"), ("libc", "normal")]).is_empty());
        assert!(found("megapage-units", &[("megapage-testing", "dev"), ("serde", "normal")]).is_empty());
        assert!(found("megapage-testing", &[("megapage-act", "normal")]).is_empty());
        assert!(found("megapage-fuzzing", &[("megapage-capi", "normal")]).is_empty());
        assert!(found("megapage-lab", &[("megapage-bench", "normal"), ("libc", "normal")]).is_empty());
        assert!(found("megapage-act", &[("megapage-lab", "dev")]).is_empty());
        assert!(found("xtask", &[("anyhow", "normal")]).is_empty());
    }

    #[test]
    fn a_dependency_against_the_order_is_caught() {
        assert_eq!(
            found("megapage-units", &[("megapage-kernel", "normal")]),
            [
                "crates/megapage-units/Cargo.toml:1: crate units must not depend on kernel: see the dependency \
              order in ARCHITECTURE.md"
            ]
        );
        assert_eq!(found("megapage-memory", &[("megapage-report", "build")]).len(), 1);
        assert_eq!(found("megapage-cli", &[("megapage-testing", "normal")]).len(), 1);
        assert_eq!(found("megapage-cli", &[("megapage-fuzzing", "normal")]).len(), 1);
        assert_eq!(found("megapage-cli", &[("megapage-lab", "normal")]).len(), 1);
    }

    #[test]
    fn system_libraries_outside_the_kernel_crate_are_caught() {
        assert!(found("megapage-observe", &[("libc", "normal")])[0].contains("belong in crates/kernel"));
        assert_eq!(found("megapage-observe", &[("rustix", "dev")]).len(), 1);
    }

    #[test]
    fn a_crate_without_a_place_is_caught() {
        assert!(found("megapage-new", &[])[0].contains("crate new has no place"));
        assert!(found("stranger", &[])[0].contains("not named megapage-"));
    }
}
