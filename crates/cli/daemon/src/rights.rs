//! Rights that the daemon needs.

use megapage_act::execute::{ExecuteError, missing_rights};
use megapage_kernel::KernelRoot;
use megapage_kernel::process::read_own_status;

/// Returns all rights that are missing, in one line, with the way to get them; `None` if none is
/// missing. A dry run needs only the right to look.
pub fn lacking(root: &KernelRoot, dry_run: bool) -> Result<Option<String>, ExecuteError> {
    if !dry_run {
        return missing_rights(root);
    }
    let looks = read_own_status(root)
        .is_ok_and(|own| own.capabilities.sys_ptrace() && own.capabilities.dac_read_search());
    Ok((!looks).then(|| {
        "looking into the processes of all users needs CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH: run as root, or setcap cap_sys_ptrace,cap_dac_read_search=ep on a copy of megapage that only those may execute whom you trust with it (mode 0750): it reads others' memory maps"
            .into()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_that_lacks_is_named() {
        let tree = tempfile::tempdir().unwrap();
        let root = KernelRoot::captured(tree.path());
        let lacking = |capabilities: &str, dry_run| {
            let directory = tree.path().join("proc/self");
            std::fs::create_dir_all(&directory).unwrap();
            std::fs::write(directory.join("status"), format!("Name:\tx\nCapEff:\t{capabilities}\n")).unwrap();
            super::lacking(&root, dry_run).unwrap()
        };
        let none = lacking("0", false).unwrap();
        assert!(none.contains("CAP_SYS_NICE and CAP_SYS_PTRACE") && none.contains("root"), "{none}");
        assert!(!lacking("0", true).unwrap().contains("CAP_SYS_NICE"));
        assert!(lacking("80000", true).unwrap().contains("CAP_DAC_READ_SEARCH"));
        assert_eq!(lacking("880004", false), None);
        assert_eq!(lacking("80004", true), None);
    }
}
