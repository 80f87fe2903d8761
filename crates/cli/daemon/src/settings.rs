//! Kernel's settings of transparent huge pages while the daemon runs.

use crate::config::Config;
use megapage_kernel::thp_change::ThpChange;
use megapage_kernel::{KernelError, KernelRoot};
use tracing::warn;

/// Changes to these settings. Dropping this reverts them; a child process does so if this process
/// is killed.
#[derive(Debug, Default)]
pub(crate) struct Settings(Option<ThpChange>);

impl Settings {
    /// Applies the settings of the configuration; the others stay as found. On an error all are as
    /// found.
    pub fn apply(&mut self, root: &KernelRoot, config: &Config) -> Result<(), KernelError> {
        let Some(controls) = config.thp.enabled.controls() else {
            self.put_back();
            return Ok(());
        };
        let change = match &mut self.0 {
            Some(change) => change,
            none => {
                let change = none.insert(ThpChange::begin_enabled(root)?);
                change.recovered().iter().for_each(|setting| warn!("{setting}"));
                change
            }
        };
        let set = change.set(&controls);
        if set.is_err() {
            self.put_back();
        }
        set
    }

    /// Reverts the changes now.
    pub fn put_back(&mut self) {
        self.0 = None;
    }

    /// Returns the settings that would be applied, as lines for a shell.
    pub fn shell_lines(config: &Config) -> Vec<String> {
        config.thp.enabled.controls().map(|controls| controls.shell_lines()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::KernelHuge;

    const ENABLED: &str = "sys/kernel/mm/transparent_hugepage/enabled";

    #[test]
    fn settings_follow_the_configuration_and_are_put_back() {
        let tree = tempfile::tempdir().unwrap();
        let root = KernelRoot::captured(tree.path());
        let khugepaged = tree.path().join("sys/kernel/mm/transparent_hugepage/khugepaged");
        std::fs::create_dir_all(&khugepaged).unwrap();
        for file in ["pages_to_scan", "scan_sleep_millisecs", "alloc_sleep_millisecs"] {
            std::fs::write(khugepaged.join(file), "1\n").unwrap();
        }
        std::fs::write(tree.path().join(ENABLED), "always [madvise] never\n").unwrap();
        let found = || std::fs::read_to_string(tree.path().join(ENABLED)).unwrap().trim().to_string();
        let with = |enabled| {
            let mut config = Config::default();
            config.thp.enabled = enabled;
            config
        };
        let mut settings = Settings::default();
        settings.apply(&root, &with(KernelHuge::Keep)).unwrap();
        assert_eq!(found(), "always [madvise] never", "not touched");
        for (enabled, text) in [(KernelHuge::Always, "always"), (KernelHuge::Never, "never")] {
            settings.apply(&root, &with(enabled)).unwrap();
            assert_eq!(found(), text);
        }
        settings.apply(&root, &with(KernelHuge::Keep)).unwrap();
        assert_eq!(found(), "madvise", "as it was found");
        settings.apply(&root, &with(KernelHuge::Always)).unwrap();
        drop(settings);
        assert_eq!(found(), "madvise");
        let lines = Settings::shell_lines(&with(KernelHuge::Always));
        assert_eq!(lines, ["echo always > /sys/kernel/mm/transparent_hugepage/enabled"]);
        assert!(Settings::shell_lines(&with(KernelHuge::Keep)).is_empty());
    }
}
