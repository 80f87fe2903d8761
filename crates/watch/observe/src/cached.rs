//! Measurements of this machine, cached in `/run/megapage` until the next boot, so that not every
//! start has to measure again.

use megapage_kernel::runtime_directory::runtime_directory;
use megapage_kernel::trusted::{Replace, read_regular, replace_file};
use megapage_kernel::{KernelRoot, boot_id, effective_uid, machine};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Longest file that is read, in bytes. A longer one is not ours.
const LONGEST: u64 = 1 << 20;
/// Largest number of measurements that are cached of one thing.
pub(crate) const MOST: usize = 5;

/// Boot for which measurements hold.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Boot {
    boot_id: String,
    processor: String,
}

impl Boot {
    /// Returns the boot of the running system, or `None` where nothing is cached. A captured tree
    /// has no running system. A debug build is slower and caches nothing.
    fn of(root: &KernelRoot) -> Option<Boot> {
        if !root.is_live() || cfg!(debug_assertions) {
            return None;
        }
        Some(Boot { boot_id: boot_id(root).ok()?, processor: machine(root).ok()?.processor })
    }
}

/// File of measurements, which hold for this boot and for `K`.
#[derive(Debug)]
pub(crate) struct Cached<K> {
    directory: PathBuf,
    file: &'static str,
    schema: &'static str,
    boot: Boot,
    key: K,
}

/// Contents of the file.
#[derive(Debug, Serialize, Deserialize)]
struct Contents<K, T> {
    schema: String,
    #[serde(flatten)]
    boot: Boot,
    #[serde(flatten)]
    key: K,
    /// Measurements, the oldest first.
    times: Vec<T>,
}

impl<K: Clone + PartialEq + Serialize + DeserializeOwned> Cached<K> {
    /// Returns the cache in `file` in the runtime directory of the system under `root`, or `None`
    /// where nothing is cached. `schema` ends in a number that rises with every change of the way
    /// of measuring. Measurements made in another way are then made again.
    pub(crate) fn of(
        root: &KernelRoot,
        file: &'static str,
        schema: &'static str,
        key: K,
    ) -> Option<Cached<K>> {
        Some(Cached { directory: runtime_directory(root), file, schema, boot: Boot::of(root)?, key })
    }

    /// Returns a cache in another directory, at a boot of this name.
    #[cfg(test)]
    pub(crate) fn within(
        directory: &Path,
        file: &'static str,
        schema: &'static str,
        boot: &str,
        key: K,
    ) -> Cached<K> {
        let boot = Boot { boot_id: boot.into(), processor: "synthetic".into() };
        Cached { directory: directory.to_path_buf(), file, schema, boot, key }
    }

    /// Returns true if the caller may write the cache: root alone.
    pub(crate) fn may_keep() -> bool {
        effective_uid() == 0
    }

    /// Returns the cached measurements, the oldest first. Returns none unless the file is complete,
    /// of this boot and key, and every measurement `is_sound`. The file and its directory must
    /// belong to root or the calling user, and no other user may write them.
    pub(crate) fn read<T: DeserializeOwned>(&self, is_sound: impl Fn(&T) -> bool) -> Vec<T> {
        self.read_checked(is_sound).unwrap_or_default()
    }

    fn read_checked<T: DeserializeOwned>(&self, is_sound: impl Fn(&T) -> bool) -> Option<Vec<T>> {
        let trusted = |path: &Path| {
            let found = fs::symlink_metadata(path).ok()?;
            let owned = found.uid() == 0 || found.uid() == effective_uid();
            (owned && found.mode() & 0o022 == 0).then_some(found)
        };
        trusted(&self.directory).filter(fs::Metadata::is_dir)?;
        let path = self.directory.join(self.file);
        trusted(&path).filter(|found| found.is_file() && found.len() <= LONGEST)?;
        let bytes = read_regular(&path, LONGEST).ok()?;
        let contents: Contents<K, T> = serde_json::from_slice(&bytes).ok()?;
        let same = contents.schema == self.schema && contents.boot == self.boot && contents.key == self.key;
        (same && contents.times.len() <= MOST && contents.times.iter().all(is_sound))
            .then_some(contents.times)
    }

    /// Writes the last [`MOST`] of `times`, all or nothing.
    pub(crate) fn write<T: Clone + Serialize>(&self, times: &[T]) -> io::Result<()> {
        if !self.directory.exists() {
            fs::create_dir(&self.directory)?;
            fs::set_permissions(&self.directory, fs::Permissions::from_mode(0o755))?;
        }
        let times = times[times.len().saturating_sub(MOST)..].to_vec();
        let (boot, key) = (self.boot.clone(), self.key.clone());
        let contents = Contents { schema: self.schema.into(), boot, key, times };
        let text = serde_json::to_string(&contents).map_err(io::Error::other)? + "\n";
        // Sets the mode whatever the umask is: a service may have a strict one, and other users
        // read the file.
        let path = std::path::absolute(self.directory.join(self.file))?;
        replace_file(&path, text.as_bytes(), Replace { mode: 0o644, durable: false })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    struct Key {
        of: String,
    }

    #[test]
    fn what_is_of_another_boot_or_damaged_is_not_read() {
        let top = tempfile::tempdir().unwrap();
        let path = top.path().join("megapage");
        let key = || Key { of: "this".into() };
        let of = |schema, boot| Cached::within(&path, "times.json", schema, boot, key());
        let ours = || of("synthetic/2", "one");
        let any = |time: &f64| *time > 0.0;
        assert!(ours().read(any).is_empty(), "there is none yet");
        ours().write(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]).unwrap();
        assert_eq!(ours().read(any), [2.0, 3.0, 4.0, 5.0, 6.0], "the last ones");
        assert_eq!(fs::read_dir(&path).unwrap().count(), 1, "no draft is left");
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&path), mode(&path.join("times.json"))), (0o755, 0o644), "others read it");
        assert!(ours().read(|time: &f64| *time > 2.0).is_empty(), "one of them makes no sense");
        assert!(of("synthetic/2", "two").read(any).is_empty());
        assert!(of("synthetic/3", "one").read(any).is_empty());
        let file = path.join("times.json");
        let whole = fs::read_to_string(&file).unwrap();
        for damaged in [whole[..whole.len() / 2].to_string(), whole.replace("2.0", "[]"), String::new()] {
            fs::write(&file, damaged).unwrap();
            assert!(ours().read(any).is_empty());
        }
        fs::write(&file, &whole).unwrap();
        assert!(!ours().read(any).is_empty());
        fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
        assert!(ours().read(any).is_empty(), "any user can have written it");
    }
}
