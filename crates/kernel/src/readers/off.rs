//! The switch that turns megapage off.

use crate::KernelRoot;
pub use megapage_inside::off::{OFF, OFF_FILE, OFF_VARIABLE, is_off};

/// Returns what switches megapage off (a variable of the calling process, or a file), in words;
/// `None` if nothing does.
pub fn why_off(root: &KernelRoot) -> Option<String> {
    let (value, file) = (OFF.to_string_lossy(), OFF_FILE.to_string_lossy());
    if std::env::var_os(OFF_VARIABLE).is_some_and(|it| it == *value) {
        return Some(format!("the variable {OFF_VARIABLE} is {value}"));
    }
    let path = root.path(file.trim_start_matches('/'));
    path.symlink_metadata().is_ok().then(|| format!("{file} exists"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_switches_megapage_off() {
        let tree = tempfile::tempdir().unwrap();
        let root = KernelRoot::captured(tree.path());
        assert_eq!(why_off(&root), None);
        std::fs::create_dir_all(tree.path().join("etc/megapage")).unwrap();
        std::fs::write(tree.path().join("etc/megapage/off"), "").unwrap();
        assert_eq!(why_off(&root).unwrap(), "/etc/megapage/off exists");
    }
}
