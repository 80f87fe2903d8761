//! Pools of single nodes at boot: checks that the kernel that will boot reads them, and that the
//! nodes are there.

use super::{BootPool, PersistError};
use crate::pool::error::PoolError;
use megapage_kernel::ability::{BOOT_POOLS_PER_NODE, Release};
use megapage_kernel::{KernelRoot, hugetlb};
use std::collections::BTreeSet;
use std::path::Path;

/// Directories in which packages install kernels' modules, one directory for each release.
const MODULES: [&str; 2] = ["lib/modules", "usr/lib/modules"];

/// Refuses words by node if no kernel of `image` reads them, or if a node is not on this machine.
/// Returns a note if only some kernels read them, or if that is unknown. `image` is `/`, or the
/// root of an image.
pub(super) fn check(
    root: &KernelRoot,
    image: &Path,
    pools: &[BootPool],
    cma: Option<&str>,
) -> Result<Option<String>, PersistError> {
    let words = pools.iter().map(|pool| pool.pages.as_str()).chain(cma);
    let by_node: Vec<&str> = words.filter(|word| word.contains(':')).collect();
    if by_node.is_empty() {
        return Ok(None);
    }
    let live = image == Path::new("/");
    // An image may be for a machine with other nodes.
    if live {
        all_there(&hugetlb::nodes(root)?, &by_node)?;
    }
    let mut releases = installed(image);
    if live {
        releases.extend(Release::of(root));
    }
    let (able, unable): (BTreeSet<Release>, BTreeSet<Release>) =
        releases.into_iter().partition(|release| BOOT_POOLS_PER_NODE.is_in(*release));
    let since = BOOT_POOLS_PER_NODE.since;
    match (unable.first(), able.first()) {
        (Some(release), None) => Err(PersistError::NodesAtBoot { release: *release, since }),
        (Some(release), Some(_)) => Ok(Some(format!(
            "Linux {release} is installed, too, and ignores pages by node at boot (since Linux {since}): it would \
             boot with none"
        ))),
        (None, Some(_)) => Ok(None),
        (None, None) => Ok(Some(format!(
            "no kernel is installed there: the one that will boot must be Linux {since} or later, as earlier ones \
             ignore pages by node at boot"
        ))),
    }
}

/// Returns the releases of the kernels that are installed below `image`.
fn installed(image: &Path) -> BTreeSet<Release> {
    let directories = MODULES.iter().filter_map(|directory| std::fs::read_dir(image.join(directory)).ok());
    let names = directories.flatten().filter_map(|entry| Some(entry.ok()?.file_name()));
    names.filter_map(|name| Release::parse(&name.to_string_lossy())).collect()
}

/// Checks that each node in `0:48,1:32` and the like is among `known`. An empty list is a kernel
/// without NUMA: node 0.
fn all_there(known: &[u32], words: &[&str]) -> Result<(), PersistError> {
    let known = if known.is_empty() { &[0] } else { known };
    let parts = words.iter().flat_map(|word| word.split(','));
    let named = parts.filter_map(|part| part.split_once(':')?.0.parse::<u32>().ok());
    match named.into_iter().find(|node| !known.contains(node)) {
        None => Ok(()),
        Some(node) => {
            let known = known.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
            Err(PoolError::UnknownNode { node, known }.into())
        }
    }
}
