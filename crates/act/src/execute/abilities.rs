//! Abilities of this kernel on another process's memory: tried at the start, on a child of our own.

use super::ExecuteError;
use crate::engine::{Advice, CanaryTarget, Refusal};
use crate::remote::{RemoteError, lacking_ability};
use megapage_kernel::ability::{Ability, COLLAPSE, PAGEMAP_SCAN, PROCESS_MADVISE, SPLIT_FREES_ZEROS, THP};
use megapage_kernel::canary::Canary;
use megapage_kernel::pagemap::Region;
use megapage_kernel::{KernelRoot, identity, meminfo, process};
use megapage_units::{BASE_PAGE, Bytes, HUGE_2M, HugePage};
use serde::Serialize;
use std::fmt::Display;
use std::io::ErrorKind;
use std::thread::sleep;
use std::time::Duration;

/// Way in which huge pages are split from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Split {
    /// MADV_COLD on one base page inside: it swaps nothing, even if there is swap.
    Cold,
    /// MADV_PAGEOUT on the whole page: only while the machine has no swap, to which it would all
    /// go.
    PageOut,
}

/// Abilities found at the start.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Abilities {
    /// True if base pages can be collapsed to a huge page from outside.
    pub collapse: bool,
    /// Way in which a huge page can be split from outside; `None` if there is none. Assumed to be
    /// possible if the child could not be given a huge page to try it on.
    pub split: Option<Split>,
    /// True if a split frees base pages that hold only zeros (Linux 6.12). Otherwise nothing is
    /// recovered.
    pub frees_zeros: bool,
    /// Notes on the above, a sentence each.
    pub notes: Vec<String>,
}

/// Pages of the child's region that keep their content. The others hold zeros.
const KEPT: usize = 100;
const PAGES: usize = HUGE_2M / BASE_PAGE;
/// Attempts, and the pause between two. A page that was just faulted in is on its way to the LRU
/// lists, and is skipped; a fragmented machine must compact first.
const TRIES: u32 = 50;
const BETWEEN: Duration = Duration::from_millis(10);

/// Returns the capabilities that the caller lacks to act on any process, in one line; `None` if it
/// lacks none.
pub fn missing_rights(root: &KernelRoot) -> Result<Option<String>, ExecuteError> {
    let own = process::read_own_status(root).map_err(RemoteError::from)?.capabilities;
    let rights = [
        ("CAP_SYS_NICE", own.sys_nice()),
        ("CAP_SYS_PTRACE", own.sys_ptrace()),
        ("CAP_DAC_READ_SEARCH", own.dac_read_search()),
    ];
    let lacking: Vec<&str> = rights.into_iter().filter_map(|(name, held)| (!held).then_some(name)).collect();
    Ok((!lacking.is_empty()).then(|| {
        format!(
            "acting on the memory of other processes needs {}, which this process lacks: run as root, or setcap cap_sys_nice,cap_sys_ptrace,cap_dac_read_search=ep on a copy of megapage that only those may execute whom you trust with it (mode 0750): it reads others' memory maps",
            lacking.join(" and ")
        )
    }))
}

/// Tries on a child what the kernel can do. It takes some milliseconds and 2 MiB, and up to a
/// second on a fragmented machine. If that memory may not be taken, the kernel's release decides,
/// and a note says so.
///
/// # Errors
/// An error if the child does not start, cannot be observed (before Linux 6.7, without
/// CAP_SYS_ADMIN), or loses a byte.
pub(super) fn find_out(root: &KernelRoot) -> Result<Abilities, ExecuteError> {
    let child = match Canary::start(0, 1, true) {
        Err(error) if error.kind() == ErrorKind::OutOfMemory => return Ok(by_release(root, &error)),
        child => child.map_err(ExecuteError::Child)?,
    };
    let mut trial = Trial {
        root,
        region: HugePage::containing(child.huge().start()),
        child: CanaryTarget::open(root, child)?,
    };
    trial.child.target.require_leaves()?;
    let mut abilities = Abilities { collapse: false, split: None, frees_zeros: false, notes: Vec::new() };
    if identity::in_user_namespace(root) {
        abilities.notes.push("in a user namespace, processes outside of it cannot be acted on".into());
    }
    if let Some(ability) = lacking_ability(root) {
        abilities.notes.push(lacks(ability));
    } else if trial.is_huge()? != Some(true) {
        // The kernel gave base pages, or the state is unknown: the trial begins with a collapse.
        trial.collapse(&mut abilities)?;
    } else {
        abilities.collapse = true;
    }
    if !PAGEMAP_SCAN.is_there(root) {
        abilities.notes.push(format!(
            "huge pages are seen by page frames and smaps, which takes longer: this kernel lacks {}",
            PAGEMAP_SCAN.title()
        ));
    }
    trial.child.canary.zero(KEPT..PAGES).map_err(ExecuteError::Child)?;
    if trial.is_huge()? == Some(true) {
        trial.split(&mut abilities)?;
        if abilities.split.is_some() && abilities.collapse {
            abilities.collapse = false;
            trial.collapse(&mut abilities)?;
        }
    } else {
        // Memory is short or scattered, just when recovery is wanted. The release decides; each
        // action is verified anyway.
        let released = by_release(root, &"there is no huge page");
        (abilities.split, abilities.frees_zeros) = (released.split, released.frees_zeros);
        if abilities.split.is_some() {
            let note = "splitting could not be tried for want of a huge page; taken for possible";
            abilities.notes.push(note.into());
        }
    }
    if trial.child.canary.touch(0..KEPT).map_err(ExecuteError::Child)?.wrong > 0 {
        return Err(ExecuteError::BytesLost);
    }
    Ok(abilities)
}

/// Returns the abilities of kernels of this release; `why` is the reason that they were not tried.
fn by_release(root: &KernelRoot, why: &dyn Display) -> Abilities {
    let lacking = lacking_ability(root);
    let splits = PROCESS_MADVISE.is_there(root) && THP.is_there(root);
    let mut notes: Vec<String> = lacking.map(lacks).into_iter().collect();
    notes.push(format!("what this kernel can do was not tried, and is taken from its release: {why}"));
    Abilities {
        collapse: lacking.is_none(),
        split: splits.then_some(Split::Cold),
        frees_zeros: splits && SPLIT_FREES_ZEROS.is_there(root),
        notes,
    }
}

fn lacks(ability: &Ability) -> String {
    let instead = "; khugepaged makes huge what programs advise, or all memory with THP at always";
    let instead = if ability.id == THP.id { "" } else { instead };
    format!("nothing is promoted on request: this kernel lacks {}{instead}", ability.title())
}

struct Trial<'a> {
    root: &'a KernelRoot,
    region: HugePage,
    child: CanaryTarget,
}

impl Trial<'_> {
    fn look(&mut self) -> Result<Option<Region>, ExecuteError> {
        let seen = self.child.target.look(&[self.region])?;
        Ok(seen.into_values().next())
    }

    fn is_huge(&mut self) -> Result<Option<bool>, ExecuteError> {
        Ok(self.look()?.and_then(|region| region.huge))
    }

    /// Gives the advice until `is_done`, or until a refusal that time does not change. Returns the
    /// region, or the last refusal.
    fn until(
        &mut self,
        advice: Advice,
        is_done: impl Fn(&Region) -> bool,
    ) -> Result<Result<Region, Option<Refusal>>, ExecuteError> {
        let mut last = None;
        for _ in 0..TRIES {
            last = self.child.call(advice, self.region);
            if let Some(region) = self.look()?.filter(&is_done) {
                return Ok(Ok(region));
            }
            if last.is_some_and(|refusal| refusal.is_final() || refusal == Refusal::Invalid) {
                break;
            }
            sleep(BETWEEN);
        }
        Ok(Err(last))
    }

    fn collapse(&mut self, abilities: &mut Abilities) -> Result<(), ExecuteError> {
        match self.until(Advice::Collapse, |region| region.huge == Some(true))? {
            Ok(_) => abilities.collapse = true,
            // A present shortage of memory says nothing about the kernel.
            Err(Some(refusal @ (Refusal::NoMemory | Refusal::GroupFull | Refusal::Busy))) => {
                abilities.collapse = true;
                abilities
                    .notes
                    .push(format!("collapse could not be tried to the end: {}", refusal.to_error()));
            }
            Err(refusal) => abilities.notes.push(format!(
                "nothing can be promoted: {}",
                match refusal {
                    Some(refusal) => format!("{} fails: {}", COLLAPSE.title(), refusal.to_error()),
                    None => "MADV_COLLAPSE has no effect".into(),
                }
            )),
        }
        Ok(())
    }

    fn split(&mut self, abilities: &mut Abilities) -> Result<(), ExecuteError> {
        let is_split = |region: &Region| region.huge == Some(false);
        let mut way = Split::Cold;
        let mut found = self.until(Advice::ColdSplit, is_split)?;
        if found.is_err() && !has_swap(self.root)? {
            way = Split::PageOut;
            found = self.until(Advice::PageOut, is_split)?;
        }
        match found {
            Ok(region) => {
                abilities.split = Some(way);
                // Something else may hold a page or two at that moment.
                abilities.frees_zeros = usize::from(region.zero_page) * 2 >= PAGES - KEPT;
                if !abilities.frees_zeros {
                    abilities.notes.push(format!(
                        "nothing can be recovered: this kernel lacks {}",
                        SPLIT_FREES_ZEROS.title()
                    ));
                }
                if way == Split::PageOut {
                    abilities
                        .notes
                        .push("huge pages are split by MADV_PAGEOUT while there is no swap".into());
                }
            }
            Err(refusal) => abilities.notes.push(format!(
                "nothing can be demoted or recovered: {}",
                match refusal {
                    Some(refusal) => format!("{} fails: {}", PROCESS_MADVISE.title(), refusal.to_error()),
                    None => "MADV_COLD does not split huge pages".into(),
                }
            )),
        }
        Ok(())
    }
}

/// Returns true if the machine has swap, used or not.
pub(super) fn has_swap(root: &KernelRoot) -> Result<bool, ExecuteError> {
    let total = meminfo(root).map_err(RemoteError::from)?.swap_total;
    Ok(total.is_some_and(|total| total > Bytes::ZERO))
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_testing::{require_root, skip};

    #[test]
    fn every_right_that_lacks_is_named_in_one_line() {
        let tree = tempfile::tempdir().unwrap();
        let directory = tree.path().join("proc/self");
        std::fs::create_dir_all(&directory).unwrap();
        let root = KernelRoot::captured(tree.path());
        let lacking = |capabilities: &str| {
            std::fs::write(directory.join("status"), format!("Name:\tx\nCapEff:\t{capabilities}\n")).unwrap();
            missing_rights(&root).unwrap()
        };
        let all = lacking("0").unwrap();
        let names = "needs CAP_SYS_NICE and CAP_SYS_PTRACE and CAP_DAC_READ_SEARCH,";
        assert!(all.contains(names) && !all.contains('\n'), "{all}");
        let nice = lacking("80004").unwrap();
        assert!(nice.contains("needs CAP_SYS_NICE,") && !nice.contains("CAP_SYS_PTRACE,"), "{nice}");
        assert!(lacking("800004").unwrap().contains("needs CAP_SYS_PTRACE,"));
        assert!(lacking("880000").unwrap().contains("needs CAP_DAC_READ_SEARCH,"));
        assert_eq!(lacking("880004"), None);
        assert_eq!(lacking("880002"), None, "CAP_DAC_OVERRIDE is more than enough");
    }

    #[test]
    fn the_running_kernel_is_tried() {
        if !require_root() {
            return;
        }
        let root = KernelRoot::live();
        let found = match find_out(&root) {
            Err(ExecuteError::Remote(RemoteError::Unseen)) => return skip("needs PAGEMAP_SCAN (Linux 6.7)"),
            found => found.unwrap(),
        };
        // Linux 6.7 and later have both; if memory is short, they are assumed to be possible.
        assert!(found.collapse && found.split == Some(Split::Cold), "{found:?}");
        assert_eq!(
            found.frees_zeros,
            !found.notes.iter().any(|note| note.contains("nothing can be recovered"))
        );
        assert!(found.notes.iter().all(|note| note.len() < 200), "{found:?}");
        // A note that is there at one start and not at the next says nothing about the kernel.
        let of_kernel = |found: &Abilities| (found.split, found.frees_zeros, found.notes.clone());
        assert_eq!(of_kernel(&find_out(&root).unwrap()), of_kernel(&found));
    }

    #[test]
    fn what_is_not_tried_is_taken_from_the_release() {
        let tree = tempfile::tempdir().unwrap();
        let root = KernelRoot::captured(tree.path());
        let of = |release: &str, settings: bool| {
            let mm = if settings { "sys/kernel/mm/transparent_hugepage" } else { "sys/kernel/mm" };
            for directory in ["proc/sys/kernel", mm] {
                std::fs::create_dir_all(tree.path().join(directory)).unwrap();
            }
            std::fs::write(tree.path().join("proc/sys/kernel/osrelease"), release).unwrap();
            let found = by_release(&root, &"it takes 2 MiB");
            (found.collapse, found.split, found.frees_zeros, found.notes)
        };
        let (collapse, split, frees_zeros, notes) = of("6.1.0-37-rt-amd64", false);
        assert_eq!((collapse, split, frees_zeros), (false, None, false));
        let lacking = "this kernel lacks transparent huge pages (CONFIG_TRANSPARENT_HUGEPAGE)";
        assert!(notes[0].ends_with(lacking) && notes[1].ends_with(": it takes 2 MiB"), "{notes:?}");
        let (collapse, split, frees_zeros, notes) = of("6.12.1", true);
        assert_eq!((collapse, split, frees_zeros), (true, Some(Split::Cold), true));
        assert!(notes.len() == 1 && notes[0].ends_with(": it takes 2 MiB"), "{notes:?}");
    }
}
