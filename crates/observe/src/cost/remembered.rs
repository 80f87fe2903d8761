//! Timings that are kept until the next boot, so that not every command has to make them, and a busy moment does not
//! spoil them: the median of the last few counts.

use super::calibrate::{AccessTimes, NoTimes};
use megapage_kernel::{KernelRoot, boot_id, effective_uid, machine};
use megapage_tlb::Geometry;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::Path;

/// So many timings are enough for who does not need the latest, and so many are kept.
const ENOUGH: u32 = 3;
const MOST: usize = 5;
/// A timing that is to say what accesses take at the moment is not older, in seconds: what else a machine does, and what
/// that leaves of its caches, changes.
const FRESH: u64 = 300;
/// The directory under the root of the system, and the file in it.
const DIRECTORY: &str = "run/megapage";
const FILE: &str = "access-times.json";
/// A number higher with every change of how timings are made: what was made in another way is made anew.
const SCHEMA: &str = "megapage.access-times/2";
/// A file that is longer is none of ours.
const LONGEST: u64 = 1 << 20;

/// What is kept.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    schema: String,
    #[serde(flatten)]
    machine: Key,
    /// The oldest first.
    times: Vec<AccessTimes>,
}

/// What timings hold for.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Key {
    boot_id: String,
    processor: String,
    geometry: Geometry,
}

impl AccessTimes {
    /// What is known of this machine: timed now, or at up to three moments since it was booted. Root keeps the timings
    /// in `/run/megapage/access-times.json`; others read them there. A debug build, which is slower, keeps none.
    pub fn known(root: &KernelRoot, geometry: &Geometry) -> Result<AccessTimes, NoTimes> {
        let Some(key) = Key::of(root, geometry) else { return AccessTimes::measure(root, geometry) };
        let directory = root.path(DIRECTORY);
        known_in(&directory, &key, effective_uid() == 0, || AccessTimes::measure(root, geometry))
    }

    /// What is kept, and nothing is timed; `None` where nothing is.
    pub fn kept(root: &KernelRoot, geometry: &Geometry) -> Option<AccessTimes> {
        AccessTimes::median(&read(&root.path(DIRECTORY), &Key::of(root, geometry)?))
    }

    /// Whether [`AccessTimes::known`] would time nothing more.
    pub fn is_enough(&self) -> bool {
        self.times() >= ENOUGH
    }

    /// What accesses take at the moment: one timing more, made now, and those of the last five minutes. What else the
    /// machine does takes the caches that page tables lie in from every program.
    pub fn renewed(root: &KernelRoot, geometry: &Geometry) -> Result<AccessTimes, NoTimes> {
        let Some(key) = Key::of(root, geometry) else { return AccessTimes::measure(root, geometry) };
        renewed_in(&root.path(DIRECTORY), &key, effective_uid() == 0, || AccessTimes::measure(root, geometry))
    }
}

impl Key {
    /// `None` where nothing is kept.
    fn of(root: &KernelRoot, geometry: &Geometry) -> Option<Key> {
        if !root.is_live() || cfg!(debug_assertions) {
            return None;
        }
        let processor = machine(root).ok()?.processor;
        Some(Key { boot_id: boot_id(root).ok()?, processor, geometry: *geometry })
    }
}

fn known_in(
    directory: &Path,
    key: &Key,
    may_keep: bool,
    measure: impl FnOnce() -> Result<AccessTimes, NoTimes>,
) -> Result<AccessTimes, NoTimes> {
    let former = AccessTimes::median(&read(directory, key));
    if let Some(former) = former.filter(|former| former.times() >= ENOUGH || !may_keep) {
        return Ok(former);
    }
    AccessTimes::median(&with_one_more(directory, key, may_keep, measure)?).ok_or(NoTimes::Senseless)
}

fn renewed_in(
    directory: &Path,
    key: &Key,
    may_keep: bool,
    measure: impl FnOnce() -> Result<AccessTimes, NoTimes>,
) -> Result<AccessTimes, NoTimes> {
    let mut all = with_one_more(directory, key, may_keep, measure)?;
    if let Some(latest) = all.last().cloned() {
        all.retain(|times| times.is_near(&latest, FRESH));
    }
    AccessTimes::median(&all).ok_or(NoTimes::Senseless)
}

/// What was kept, with one timing more; without it where it failed and others are there.
fn with_one_more(
    directory: &Path,
    key: &Key,
    may_keep: bool,
    measure: impl FnOnce() -> Result<AccessTimes, NoTimes>,
) -> Result<Vec<AccessTimes>, NoTimes> {
    let mut all = read(directory, key);
    match measure() {
        Ok(now) => {
            all.push(now);
            all.drain(..all.len().saturating_sub(MOST));
            if may_keep {
                // Whoever cannot keep them makes them again.
                let _ = write(directory, key, &all);
            }
        }
        Err(why) if all.is_empty() => return Err(why),
        Err(_) => {}
    }
    Ok(all)
}

/// What was kept, the oldest first, if it is of this machine and this boot, whole, and nobody but root, or who asks, can
/// have written it.
fn read(directory: &Path, key: &Key) -> Vec<AccessTimes> {
    read_kept(directory, key).unwrap_or_default()
}

fn read_kept(directory: &Path, key: &Key) -> Option<Vec<AccessTimes>> {
    let trusted = |path: &Path| {
        let found = fs::symlink_metadata(path).ok()?;
        let owned = found.uid() == 0 || found.uid() == effective_uid();
        (owned && found.mode() & 0o022 == 0).then_some(found)
    };
    trusted(directory).filter(fs::Metadata::is_dir)?;
    let path = directory.join(FILE);
    trusted(&path).filter(|found| found.is_file() && found.len() <= LONGEST)?;
    let mut bytes = Vec::new();
    fs::File::open(&path).ok()?.take(LONGEST).read_to_end(&mut bytes).ok()?;
    let kept: Kept = serde_json::from_slice(&bytes).ok()?;
    let sound = |times: &AccessTimes| times.is_sound() && !times.is_guess();
    let good = kept.schema == SCHEMA && kept.machine == *key && kept.times.len() <= MOST;
    (good && kept.times.iter().all(sound)).then_some(kept.times)
}

/// Writes all or nothing.
fn write(directory: &Path, key: &Key, times: &[AccessTimes]) -> io::Result<()> {
    if !directory.exists() {
        fs::create_dir(directory)?;
        fs::set_permissions(directory, fs::Permissions::from_mode(0o755))?;
    }
    let kept = Kept { schema: SCHEMA.into(), machine: key.clone(), times: times.to_vec() };
    let text = serde_json::to_string(&kept).map_err(io::Error::other)? + "\n";
    let draft = directory.join(format!(".{FILE}.{}", std::process::id()));
    let mut file = fs::OpenOptions::new().write(true).create_new(true).mode(0o644).open(&draft)?;
    let written = file.write_all(text.as_bytes()).and_then(|()| fs::rename(&draft, directory.join(FILE)));
    if written.is_err() {
        let _ = fs::remove_file(&draft);
    }
    written
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cost::calibrate::made_up;
    use std::cell::Cell;

    fn key() -> Key {
        Key { boot_id: "one".into(), processor: "made up".into(), geometry: Geometry::FALLBACK }
    }

    /// A directory as `/run/megapage` is.
    fn directory() -> (tempfile::TempDir, std::path::PathBuf) {
        let top = tempfile::tempdir().unwrap();
        let path = top.path().join("megapage");
        (top, path)
    }

    #[test]
    fn machines_are_timed_three_times_and_then_remembered() {
        let (_top, path) = directory();
        let measured = Cell::new(0);
        let known = |may_keep| {
            let measure = || {
                measured.set(measured.get() + 1);
                Ok(made_up(1.0))
            };
            known_in(&path, &key(), may_keep, measure).unwrap()
        };
        assert_eq!(known(false).times(), 1);
        assert!(!path.exists(), "who may not keep them writes nothing");
        for round in 1..=5 {
            assert_eq!(known(true).times(), round.min(3));
        }
        assert_eq!(measured.get(), 4);
        assert_eq!((known(false).times(), measured.get()), (3, 4), "others read them");
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn what_was_timed_long_ago_says_nothing_of_the_moment() {
        let (_top, path) = directory();
        let long_ago = [made_up(9.0).made_at(1000), made_up(9.0).made_at(1001), made_up(1.0).made_at(1900)];
        write(&path, &key(), &long_ago).unwrap();
        let now = renewed_in(&path, &key(), true, || Ok(made_up(1.0).made_at(2000))).unwrap();
        assert_eq!((now.times(), &now.steps()[0]), (2, &made_up(1.0).steps()[0]));
        assert_eq!(known_in(&path, &key(), true, || panic!("there are enough")).unwrap().times(), 4);
        let failed = renewed_in(&path, &key(), true, || Err(NoTimes::Senseless)).unwrap();
        assert_eq!(failed.times(), 2, "the latest are the best that there is");
    }

    #[test]
    fn what_is_of_another_machine_or_damaged_is_made_again() {
        let (_top, path) = directory();
        write(&path, &key(), &[made_up(1.0)]).unwrap();
        assert!(!read(&path, &key()).is_empty());
        assert!(read(&path, &Key { boot_id: "two".into(), ..key() }).is_empty());
        assert!(read(&path, &Key { processor: "other".into(), ..key() }).is_empty());
        let file = path.join(FILE);
        let whole = fs::read_to_string(&file).unwrap();
        for damaged in [
            whole[..whole.len() / 2].to_string(),
            whole.replace(SCHEMA, "megapage.access-times/1"),
            whole.replacen("\"base\":", "\"base\":-", 1),
            String::new(),
        ] {
            fs::write(&file, damaged).unwrap();
            assert!(read(&path, &key()).is_empty());
        }
        fs::write(&file, &whole).unwrap();
        assert!(!read(&path, &key()).is_empty());
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(read(&path, &key()).is_empty(), "anybody can have written it");
        let failed = || Err(NoTimes::Senseless);
        assert!(known_in(&path, &key(), true, failed).is_err());
        fs::set_permissions(&file, fs::Permissions::from_mode(0o644)).unwrap();
        assert!(known_in(&path, &key(), true, failed).is_ok(), "former timings serve where none can be made");
    }
}
