//! Other sources that set transparent huge pages at boot: tmpfiles, tuned, sysfsutils, rc.local,
//! units.

use super::Step;
use megapage_kernel::thp::path;
use megapage_kernel::tree::Tree;
use std::path::{Path, PathBuf};

const TMPFILES: [&str; 4] =
    ["etc/tmpfiles.d", "run/tmpfiles.d", "usr/local/lib/tmpfiles.d", "usr/lib/tmpfiles.d"];
const TUNED: [&str; 4] = ["etc/tuned", "etc/tuned/profiles", "usr/lib/tuned", "usr/lib/tuned/profiles"];
/// Most names that are listed of a directory, and the largest file that is read, in bytes.
const MOST: usize = 4096;
const LONGEST: u64 = 1 << 20;
/// Most profiles of tuned that are read, following `include`.
const DEEPEST: usize = 8;

/// Returns one sentence for each other source. Skips files that cannot be read.
pub(super) fn others(tree: &Tree, own: &Path, steps: &[Step]) -> Vec<String> {
    let mut notes = tmpfiles(tree, own, steps);
    notes.extend(tuned(tree));
    notes.extend(mentions(tree, steps));
    notes
}

/// Looks in tmpfiles.d(5): of two lines for one path, the one in the file whose name sorts first
/// counts.
fn tmpfiles(tree: &Tree, own: &Path, steps: &[Step]) -> Vec<String> {
    let own_name = own.file_name().unwrap_or_default();
    let mut notes = Vec::new();
    for file in TMPFILES.iter().flat_map(|directory| listed(tree, directory)) {
        let Some(text) = read(tree, &file).filter(|_| file != own) else { continue };
        for step in steps {
            let path = path(&step.name);
            let sets = |line: &str| {
                let mut words = line.split_whitespace();
                words.next().is_some_and(|kind| kind.starts_with(['w', 'f'])) && words.next() == Some(&path)
            };
            if text.lines().any(sets) {
                let first = file.file_name().is_some_and(|name| name < own_name);
                let holds = if first { "that one counts" } else { "ours counts" };
                notes.push(format!(
                    "{} sets {} too: of the two {holds}, by its name",
                    file.display(),
                    step.name
                ));
            }
        }
    }
    notes
}

/// Looks in tuned's active profile, which tuned applies after systemd-tmpfiles.
fn tuned(tree: &Tree) -> Vec<String> {
    let active = read(tree, &tree.root().join("etc/tuned/active_profile")).unwrap_or_default();
    let mut notes = Vec::new();
    let mut open: Vec<String> = active.split_whitespace().map(String::from).collect();
    let mut seen = 0;
    while let Some(profile) = open.pop() {
        seen += 1;
        if seen > DEEPEST || profile.contains('/') {
            break;
        }
        let files = TUNED.iter().map(|place| tree.root().join(place).join(&profile).join("tuned.conf"));
        let Some(text) = files.into_iter().find_map(|file| read(tree, &file)) else { continue };
        for line in text.lines() {
            let Some((key, value)) = line.split_once('=') else { continue };
            match key.trim() {
                "transparent_hugepages" | "transparent_hugepage" => notes.push(format!(
                    "tuned's profile {profile} sets transparent huge pages to {}, after what is kept here",
                    value.trim()
                )),
                "include" => open.extend(value.split([',', ' ']).map(|name| name.trim().to_string())),
                _ => {}
            }
        }
    }
    notes
}

/// Looks for files that name the settings: sysfsutils' configuration, rc.local, and units such as
/// those that databases recommend.
fn mentions(tree: &Tree, steps: &[Step]) -> Vec<String> {
    let mut files = vec![tree.root().join("etc/sysfs.conf"), tree.root().join("etc/rc.local")];
    files.extend(listed(tree, "etc/sysfs.d"));
    files.extend(listed(tree, "etc/systemd/system"));
    let names = |text: &str| {
        let lines = text.lines().filter(|line| !line.trim_start().starts_with(['#', ';']));
        let mut lines = lines.filter(|line| line.contains("transparent_hugepage"));
        lines.any(|line| {
            steps.iter().any(|step| line.contains(&format!("transparent_hugepage/{}", step.name)))
        })
    };
    let found = files.into_iter().filter(|file| read(tree, file).is_some_and(|text| names(&text)));
    found.map(|file| format!("{} sets transparent huge pages too, perhaps later", file.display())).collect()
}

fn listed(tree: &Tree, directory: &str) -> Vec<PathBuf> {
    let directory = tree.root().join(directory);
    let names = tree.names(&directory, MOST).unwrap_or_default();
    let kinds = ["conf", "service"];
    let paths = names.into_iter().map(|name| directory.join(name));
    paths.filter(|path| path.extension().is_some_and(|kind| kinds.iter().any(|it| kind == *it))).collect()
}

fn read(tree: &Tree, file: &Path) -> Option<String> {
    tree.read(file, LONGEST).ok().flatten()
}
