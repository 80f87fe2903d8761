//! A setting of transparent huge pages that a test changes.

use crate::undo::Undo;
use crate::{MachineLock, require_machine, skip};
use megapage_kernel::{KernelRoot, thp};

/// A file of `/sys/kernel/mm/transparent_hugepage` that holds a word of the test's choice. Dropping
/// the value restores the former word, as does any end of its process.
#[derive(Debug)]
pub struct ThpSetting {
    // Dropped before the lock.
    _undo: Undo,
    _lock: MachineLock,
}

impl ThpSetting {
    /// Writes `word` to the file `name`, such as `hugepages-64kB/enabled`. Returns `None`, after a
    /// loud skip, if tests may not change the machine or the kernel has no such file.
    ///
    /// # Panics
    /// If the file cannot be written or no shell be started, since the test would judge another
    /// setting.
    pub fn write(name: &str, word: &str) -> Option<ThpSetting> {
        if !require_machine() {
            return None;
        }
        let lock = MachineLock::take();
        let (root, path) = (KernelRoot::live(), thp::path(name));
        let Some(former) = value(&root, name) else {
            skip(&format!("needs {path}"));
            return None;
        };
        let undo = Undo::start("echo \"$2\" > \"$1\"", &[path.as_ref(), former.as_ref()]);
        let undo = undo.unwrap_or_else(|error| panic!("sh, to restore {path}: {error}"));
        thp::write_setting(&root, name, word).unwrap_or_else(|error| panic!("{path}: {error}"));
        Some(ThpSetting { _undo: undo, _lock: lock })
    }
}

/// Returns the value of the setting; `None` if the kernel has none of this name.
fn value(root: &KernelRoot, name: &str) -> Option<String> {
    let settings = thp::raw_settings(root).ok()?;
    settings.into_iter().find(|setting| setting.name == name).map(|setting| setting.value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_former_word_is_put_back() {
        if !require_machine() {
            return;
        }
        // Held over both, so that no other test changes it in between.
        let _lock = MachineLock::take();
        let read = || value(&KernelRoot::live(), "defrag").unwrap();
        let former = read();
        let other = if former == "never" { "madvise" } else { "never" };
        let Some(setting) = ThpSetting::write("defrag", other) else { return };
        assert_eq!(read(), other);
        drop(setting);
        assert_eq!(read(), former);
    }
}
