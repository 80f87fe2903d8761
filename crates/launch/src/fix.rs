//! Pages that are added to the pools for one run, and taken out again after it.

use megapage_act::pool::{Addition, AdditionError};
use megapage_kernel::KernelRoot;
use megapage_units::PageSize;

/// What a run has added. What is left of it when this is dropped is taken out then.
#[derive(Debug, Default)]
pub struct Added {
    additions: Vec<Addition>,
}

impl Added {
    /// Adds all of them or none. Above the safe floor of memory only ([`megapage_act::pool::floor`]).
    pub fn make(root: &KernelRoot, wanted: &[(PageSize, u64)]) -> Result<Added, AdditionError> {
        let mut added = Added::default();
        for (size, pages) in wanted {
            let mut addition = Addition::of(root, *size, 0);
            addition.set(*pages, false)?;
            added.additions.push(addition);
        }
        Ok(added)
    }

    /// The shell lines that [`Added::make`] stands for, and those that undo it.
    pub fn commands(
        root: &KernelRoot,
        wanted: &[(PageSize, u64)],
    ) -> Result<(Vec<String>, Vec<String>), AdditionError> {
        let (mut before, mut after) = (Vec::new(), Vec::new());
        for (size, pages) in wanted {
            before.extend(Addition::of(root, *size, 0).commands(*pages)?);
            after.push(format!("megapage pool set {size}:-{pages}"));
        }
        Ok((before, after))
    }

    /// Takes the pages out again, in words for the report; what another process uses of them meanwhile goes back to the
    /// kernel when it is freed.
    pub fn take_out(&mut self) -> Vec<String> {
        let take = |mut addition: Addition| {
            let pages = addition.added();
            let size = addition.page_size();
            match addition.set(0, true) {
                Ok(()) => {
                    format!("--fix: {pages} pages of {size} were added for this run and are taken out again")
                }
                Err(error) => {
                    format!(
                        "--fix: {pages} pages of {size} stay in the pool: {error}; megapage pool set {size}:-{pages}"
                    )
                }
            }
        };
        self.additions.drain(..).map(take).collect()
    }
}

impl Drop for Added {
    fn drop(&mut self) {
        self.take_out();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_kernel::hugetlb::{PoolScope, counts};
    use megapage_testing::PoolGuard;

    #[test]
    fn what_is_added_goes_again() {
        let size = PageSize::HUGE_2M;
        let Some(guard) = PoolGuard::reserve(size, 0) else { return };
        let root = KernelRoot::live();
        let pages = || counts(&root, size, PoolScope::Machine).unwrap().persistent();
        let before = guard.former().persistent();
        let mut added = Added::make(&root, &[(size, 3)]).unwrap();
        assert_eq!(pages(), before + 3);
        let said = added.take_out();
        assert_eq!((pages(), said.len()), (before, 1));
        assert!(said[0].contains("3 pages of 2m"), "{said:?}");
        drop(Added::make(&root, &[(size, 2)]).unwrap());
        assert_eq!(pages(), before, "also without removing them");
        Added::make(&root, &[(size, 1), (size, 1 << 40)]).unwrap_err();
        assert_eq!(pages(), before, "all or none");
        let (first, last) = Added::commands(&root, &[(size, 4)]).unwrap();
        assert!(first.iter().any(|line| line.contains(&(before + 4).to_string())), "{first:?}");
        assert_eq!(last, ["megapage pool set 2m:-4"]);
    }
}
