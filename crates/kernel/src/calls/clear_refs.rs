//! Clearing of the accessed bits of a whole process: `/proc/PID/clear_refs`
//! (proc_pid_clear_refs(5)).

use crate::{KernelError, KernelRoot};
use megapage_units::Pid;

/// Clears the accessed bit of every page of `pid`, and the kernel's own mark of reference. Includes
/// huge pages, but not hugetlb pages. Takes the process's mmap lock for writing while it walks the
/// page tables. Does not flush the TLB of other processors: an access by a cached translation in
/// the moments after is not seen. EACCES if the process is another user's and the caller is not
/// root; ESRCH if it has gone.
pub fn clear_accessed(root: &KernelRoot, pid: Pid) -> Result<(), KernelError> {
    root.write(format!("proc/{pid}/clear_refs"), "1")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::captured_tree;

    #[test]
    fn the_whole_process_is_asked_for() {
        let (_keep, root) = captured_tree(&[("proc/7/clear_refs", "")]);
        clear_accessed(&root, Pid(7)).unwrap();
        assert_eq!(root.read("proc/7/clear_refs").unwrap(), "1");
        assert!(clear_accessed(&KernelRoot::live(), Pid(i32::MAX)).unwrap_err().is_gone());
    }
}
