//! Persistence of pools over a reboot: sysctl.d for the default size, boot parameters for the
//! remainder.
//!
//! A call states the whole: a pool that it does not name is not persistent. Nothing is written if
//! the pools would leave the machine too little memory to boot with ([`LEAST`]). `hugepages=2000`
//! on 2 GiB ends in a panic before anything could be repaired, so there is no `force` here. A
//! machine that boots, but has less than the safe floor for everything else, may be what its owner
//! wants: that is a warning.

mod boot;
mod files;
mod memory;
mod nodes;

pub use boot::{BootPool, Loader, parameters};
pub use files::{BACKUP_SUFFIX, Edit, MARKER};
pub use memory::{LEAST, PersistMemory};

use super::error::PoolError;
use super::plan::resolve_size;
use super::spec::{Amount, Quantity, Spec};
use megapage_kernel::ability::Release;
use megapage_kernel::hugetlb::{self, PoolScope};
use megapage_kernel::thp::ThpEnabled;
use megapage_kernel::tree::Tree;
use megapage_kernel::{KernelRoot, MemInfo, meminfo};
use megapage_units::{Bytes, PageSize};
use serde::Serialize;
use std::io;
use std::path::{Path, PathBuf};
use thiserror::Error;

const SYSCTL: &str = "etc/sysctl.d/60-megapage.conf";

/// Pools to keep, and the root below which the files are.
#[derive(Clone, Debug)]
pub struct PersistRequest {
    /// Pools to keep. Without any, and without `overcommit` or `cma`: the pools as they are now.
    pub pools: Vec<Spec>,
    /// Overcommit limits to keep.
    pub overcommit: Vec<Spec>,
    /// Memory to set aside at boot for 1 GiB pages at run time (`hugetlb_cma=`): `4g`, or
    /// `0:2g,1:2g`.
    pub cma: Option<String>,
    /// The page size for programs that name none (`default_hugepagesz=`).
    pub default_size: Option<PageSize>,
    /// THP from the first process on (`transparent_hugepage=`): always, madvise or never.
    pub thp: Option<ThpEnabled>,
    /// True to use boot parameters for the default size, too.
    pub at_boot: bool,
    /// The boot loader; `None` to detect it by the files that are there.
    pub loader: Option<Loader>,
    /// `/`, or the root of an image.
    pub root: PathBuf,
    /// The memory of the machine that will boot; `None` for that of this one.
    pub memory: Option<Bytes>,
}

/// Changes that bring the files into their target state.
#[derive(Clone, Debug, Serialize)]
pub struct PersistPlan {
    /// Root below which the files are.
    #[serde(skip)]
    pub root: PathBuf,
    /// Every file looked at, no-ops included.
    pub edits: Vec<Edit>,
    /// The boot parameters.
    pub boot_parameters: Vec<String>,
    /// Memory at the next boot; `None` if everything is removed.
    pub memory: Option<PersistMemory>,
    /// Possible failures after the next boot, with their values.
    pub warnings: Vec<String>,
    /// Other facts to know, such as another file that sets the same.
    pub notes: Vec<String>,
    /// Steps that are left to do by hand for the files to take effect.
    pub next: Vec<String>,
    /// The equivalent shell lines.
    pub commands: Vec<String>,
}

/// Reason that pools are not made persistent. Nothing has been written, or everything was restored.
#[derive(Debug, Error)]
pub enum PersistError {
    /// The request itself is wrong.
    #[error(transparent)]
    Pool(#[from] PoolError),
    /// `+64` or `-64`: at the next boot there is no value to which it is relative.
    #[error("'{0}': a persisted value is absolute; write it without + or -")]
    Relative(String),
    /// The same pool twice.
    #[error("the {0} pool is given twice")]
    Twice(PageSize),
    /// No pool has a page, and none is named.
    #[error("there is nothing to keep: every pool is empty; name one, such as 2m=512, or pass --remove")]
    Nothing,
    /// The pools would not leave enough memory to boot with.
    #[error(
        "{} in pools would leave {} of {} for everything else, below the {LEAST} that a machine needs to boot; keep less",
        .0.pools, .0.left, .0.total
    )]
    TooMuch(PersistMemory),
    /// `--default-size` that the kernel does not know.
    #[error("--default-size {size}: this kernel has no pool of {size} pages; it has {known}")]
    DefaultSize {
        /// The size asked for.
        size: PageSize,
        /// The sizes that the kernel has.
        known: String,
    },
    /// A word of `transparent_hugepage=` that the kernel does not take.
    #[error("transparent_hugepage={0}: the kernel takes always, madvise or never at boot")]
    Thp(ThpEnabled),
    /// Only vm.nr_overcommit_hugepages is persistent, and it is of the default size.
    #[error("'{spec}': only the overcommit limit of the default size ({default}) can be kept")]
    OvercommitOfSize {
        /// The argument.
        spec: String,
        /// The default size.
        default: PageSize,
    },
    /// `--cma` that is no size.
    #[error("--cma '{0}' is not an amount of memory; write 4g, or 0:2g,1:2g for nodes")]
    Cma(String),
    /// The running kernel has no CMA.
    #[error("--cma: this kernel was built without CONFIG_CMA; keep 1 GiB pages instead (1g=N)")]
    NoCma,
    /// Pages by node, for a kernel that ignores them.
    #[error(
        "Linux {release} ignores pages by node at boot (since Linux {since}) and would boot with none; keep a value \
         for the machine, and size nodes when it runs (megapage pool set)"
    )]
    NodesAtBoot {
        /// The oldest kernel that is installed.
        release: Release,
        /// The first that reads them.
        since: Release,
    },
    /// With hugetlb_cma the kernel skips gigantic pages at boot.
    #[error(
        "--cma and {0} pages exclude each other: with hugetlb_cma the kernel reserves none at boot; size them when it runs (megapage pool set)"
    )]
    CmaAndGigantic(PageSize),
    /// No files of a boot loader were found.
    #[error("{}: no boot loader found (GRUB, systemd-boot); add to the kernel's command line yourself: {words}", .root.display())]
    NoLoader {
        /// The root below which they were looked for.
        root: PathBuf,
        /// The parameters.
        words: String,
    },
    /// The GRUB of Fedora and its kin.
    #[error(
        "this GRUB takes its command line from boot loader entries; run: grubby --update-kernel=ALL --args=\"{0}\""
    )]
    Grubby(String),
    /// Another file sets the same.
    #[error("{}: sets {word} already, not by megapage; take it out first", .path.display())]
    Foreign {
        /// The parameter.
        word: String,
        /// The file.
        path: PathBuf,
    },
    /// A file of our name that we did not write.
    #[error("{}: was not written by megapage; move it away first", .0.display())]
    NotOurs(PathBuf),
    /// A symbolic link.
    #[error("{}: is a symbolic link; megapage edits plain files only", .0.display())]
    Link(PathBuf),
    /// A symbolic link within the path.
    #[error(
        "{}: a symbolic link is on the way, which could lead out of the image; put the directory itself in its place", .0.display()
    )]
    LinkOnTheWay(PathBuf),
    /// More boot entries than a machine has.
    #[error("{0} boot entries are more than megapage edits")]
    TooManyEntries(usize),
    /// A file could not be read or written.
    #[error("{}: {source}{}", .path.display(), if .source.kind() == io::ErrorKind::PermissionDenied { "; run as root (sudo)" } else { "" })]
    Io {
        /// The file.
        path: PathBuf,
        /// Error that the kernel returned.
        source: io::Error,
    },
}

impl From<megapage_kernel::KernelError> for PersistError {
    fn from(error: megapage_kernel::KernelError) -> PersistError {
        PersistError::Pool(error.into())
    }
}

/// Settings to be persistent, resolved.
#[derive(Default)]
struct Kept {
    sysctl: Vec<String>,
    boot: Vec<BootPool>,
    cma: Option<String>,
    bytes: u128,
}

/// Returns the changes to the files that keep the pools asked for. Refuses unknown sizes, and
/// contradictory or unsafe requests.
pub fn persist(root: &KernelRoot, request: &PersistRequest) -> Result<PersistPlan, PersistError> {
    let mut info = meminfo(root)?;
    let running = info.default_huge_size;
    info.default_huge_size = default_at_boot(root, request, running)?;
    let kept = kept(root, &info, request)?;
    let pools = Bytes(kept.bytes.min(u64::MAX.into()) as u64);
    let memory = match request.memory {
        Some(installed) => PersistMemory::of_installed(installed, pools),
        None => PersistMemory::of_running(info.total.ok_or(PoolError::NoMeminfo)?, pools),
    };
    if memory.cannot_boot() {
        return Err(PersistError::TooMuch(memory));
    }
    let note = nodes::check(root, &request.root, &kept.boot, kept.cma.as_deref())?;
    let thp = match request.thp {
        Some(ThpEnabled::Inherit) => return Err(PersistError::Thp(ThpEnabled::Inherit)),
        word => word.map(|word| word.to_string()),
    };
    let words = parameters(&kept.boot, kept.cma.as_deref(), request.default_size, thp.as_deref());
    let mut plan = assemble(request, &kept.sysctl, words)?;
    plan.warnings.extend(memory.warning());
    plan.memory = Some(memory);
    plan.notes.extend(note);
    if let Some(size) = info.default_huge_size.filter(|size| Some(*size) != running) {
        plan.notes.push(format!(
            "from the next boot on, MAP_HUGETLB and SHM_HUGETLB without a size, mounts of hugetlbfs without pagesize= \
             and vm.nr_hugepages mean pages of {size}"
        ));
        if kept.sysctl.is_empty() {
            plan.notes.extend(other_sysctls(&open(&request.root)?)?);
        }
    }
    Ok(plan)
}

/// Returns the default page size of the boot that the files are for. The requested size comes
/// first. If this call removes the `default_hugepagesz=` of an earlier one, it is the kernel's own
/// default. Otherwise it is the present one.
fn default_at_boot(
    root: &KernelRoot,
    request: &PersistRequest,
    running: Option<PageSize>,
) -> Result<Option<PageSize>, PersistError> {
    let Some(size) = request.default_size else {
        let ours = boot::keeps_default_size(&open(&request.root)?)?;
        return Ok(if ours { running.map(|_| PageSize::HUGE_2M) } else { running });
    };
    let known = hugetlb::page_sizes(root)?;
    if known.is_empty() {
        return Err(PoolError::NoHugetlb.into());
    }
    if !known.contains(&size) {
        let known = known.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
        return Err(PersistError::DefaultSize { size, known });
    }
    Ok(Some(size))
}

/// Returns the edits that remove everything that was persistent.
pub fn forget(request: &PersistRequest) -> Result<PersistPlan, PersistError> {
    assemble(request, &[], Vec::new())
}

impl PersistPlan {
    /// Returns true if every file is already in its target state.
    pub fn is_no_op(&self) -> bool {
        self.edits.iter().all(Edit::is_no_op)
    }

    /// Writes the files, each atomically. If one fails, all are restored.
    pub fn apply(&self) -> Result<(), PersistError> {
        files::make_all(&open(&self.root)?, &self.edits)
    }
}

fn kept(root: &KernelRoot, info: &MemInfo, request: &PersistRequest) -> Result<Kept, PersistError> {
    let default = info.default_huge_size.ok_or(PoolError::NoHugetlb)?;
    let present = request.pools.is_empty() && request.overcommit.is_empty() && request.cma.is_none();
    let (pools, overcommit) = if present {
        present_pools(root, default)?
    } else {
        (request.pools.clone(), request.overcommit.clone())
    };
    let mut kept = Kept::default();
    let mut seen: Vec<PageSize> = Vec::new();
    for spec in &pools {
        let size = resolve_size(root, info, spec)?;
        if seen.contains(&size) {
            return Err(PersistError::Twice(size));
        }
        seen.push(size);
        let mut values = Vec::new();
        for &(scope, amount) in &spec.amounts {
            let pages = absolute(spec, amount, size)?;
            kept.bytes += u128::from(pages) * u128::from(size.bytes().0);
            values.push((scope, pages));
        }
        match values[..] {
            [(PoolScope::Machine, pages)]
                if size == default && size < PageSize::HUGE_1G && !request.at_boot =>
            {
                kept.sysctl.push(format!("vm.nr_hugepages = {pages}"));
            }
            [(PoolScope::Machine, pages)] => kept.boot.push(BootPool { size, pages: pages.to_string() }),
            _ => {
                let of_node = |&(scope, pages): &(PoolScope, u64)| match scope {
                    PoolScope::Node(node) => format!("{node}:{pages}"),
                    PoolScope::Machine => pages.to_string(),
                };
                let pages = values.iter().map(of_node).collect::<Vec<_>>().join(",");
                kept.boot.push(BootPool { size, pages });
            }
        }
    }
    for spec in &overcommit {
        let size = resolve_size(root, info, spec)?;
        if size != default {
            return Err(PersistError::OvercommitOfSize { spec: spec.text.clone(), default });
        }
        let &[(PoolScope::Machine, amount)] = &spec.amounts[..] else {
            return Err(PoolError::OvercommitOfNode { spec: spec.text.clone() }.into());
        };
        if kept.sysctl.iter().any(|line| line.starts_with("vm.nr_overcommit")) {
            return Err(PersistError::Twice(size));
        }
        let pages = absolute(spec, amount, size)?;
        kept.sysctl.push(format!("vm.nr_overcommit_hugepages = {pages}"));
    }
    if let Some(text) = &request.cma {
        let (words, bytes) = cma(text)?;
        // The running kernel says nothing about the one in an image.
        if request.root == Path::new("/") && info.cma_total.is_none() {
            return Err(PersistError::NoCma);
        }
        if let Some(pool) = kept.boot.iter().find(|pool| pool.size >= PageSize::HUGE_1G) {
            return Err(PersistError::CmaAndGigantic(pool.size));
        }
        kept.bytes += bytes;
        kept.cma = Some(words);
    }
    let only_pools = request.default_size.is_none() && request.thp.is_none();
    if present && only_pools && kept.sysctl.is_empty() && kept.boot.is_empty() {
        return Err(PersistError::Nothing);
    }
    Ok(kept)
}

/// Returns the pools as they are now, as if they had been named.
fn present_pools(root: &KernelRoot, default: PageSize) -> Result<(Vec<Spec>, Vec<Spec>), PersistError> {
    let spec = |size: PageSize, pages: u64| Spec {
        text: format!("{size}={pages}"),
        size: super::spec::SizeName::Size(size),
        amounts: vec![(PoolScope::Machine, Amount::Exactly(Quantity::Pages(pages)))],
    };
    let (mut pools, mut overcommit) = (Vec::new(), Vec::new());
    for size in hugetlb::page_sizes(root)? {
        let values = hugetlb::counts(root, size, PoolScope::Machine)?;
        if values.persistent() > 0 {
            pools.push(spec(size, values.persistent()));
        }
        if let Some(pages @ 1..) = values.overcommit
            && size == default
        {
            overcommit.push(spec(size, pages));
        }
    }
    Ok((pools, overcommit))
}

fn absolute(spec: &Spec, amount: Amount, size: PageSize) -> Result<u64, PersistError> {
    let Amount::Exactly(quantity) = amount else { return Err(PersistError::Relative(spec.text.clone())) };
    Ok(quantity.pages(size).ok_or_else(|| PoolError::NotWhole { spec: spec.text.clone(), size })?)
}

/// Returns `4g` or `0:2g,1:2g` as the kernel reads it, and the sum in bytes.
fn cma(text: &str) -> Result<(String, u128), PersistError> {
    let bad = || PersistError::Cma(text.to_string());
    let mut sum = 0;
    let mut parts = Vec::new();
    for part in text.split(',') {
        let (node, amount) = match part.split_once(':') {
            Some((node, amount)) => (format!("{}:", node.trim().parse::<u32>().map_err(|_| bad())?), amount),
            None if text.contains(',') => return Err(bad()),
            None => (String::new(), part),
        };
        let bytes: Bytes = amount.parse().map_err(|_| bad())?;
        if bytes == Bytes::ZERO || !bytes.0.is_multiple_of(1 << 20) {
            return Err(bad());
        }
        sum += u128::from(bytes.0);
        parts.push(node + &boot::memparse(bytes));
    }
    Ok((parts.join(","), sum))
}

fn open(root: &Path) -> Result<Tree, PersistError> {
    Tree::open(root).map_err(|error| files::failed(root, error))
}

fn assemble(
    request: &PersistRequest,
    sysctl: &[String],
    words: Vec<String>,
) -> Result<PersistPlan, PersistError> {
    let root = &request.root;
    let tree = &open(root)?;
    let text = (!sysctl.is_empty()).then(|| sysctl.join("\n") + "\n");
    let mut edits = vec![Edit::own(tree, root.join(SYSCTL), text)?];
    // Commands for the running machine do not apply to an image.
    let live = root == Path::new("/");
    let mut next = Vec::new();
    if live && !edits[0].is_no_op() && !sysctl.is_empty() {
        next.push("sysctl --system".to_string());
    }
    let loaders = match (request.loader, words.is_empty()) {
        (Some(loader), _) => vec![loader],
        (None, false) => vec![boot::detect(tree, &words)?],
        // Nothing to add: words that an earlier call added are removed, in either loader's files.
        (None, true) => vec![Loader::Grub, Loader::SystemdBoot],
    };
    for loader in loaders {
        let boot_edits = boot::edits(tree, loader, &words)?;
        if boot_edits.iter().any(|edit| !edit.is_no_op()) {
            if loader == Loader::Grub {
                next.push(if live {
                    "update-grub".to_string()
                } else {
                    format!("chroot {} update-grub", root.display())
                });
            }
            next.extend(live.then(|| "reboot".to_string()));
        }
        edits.extend(boot_edits);
    }
    let notes = if sysctl.is_empty() { Vec::new() } else { other_sysctls(tree)? };
    let commands = edits.iter().flat_map(Edit::commands).collect();
    Ok(PersistPlan {
        root: root.clone(),
        edits,
        boot_parameters: words,
        memory: None,
        warnings: Vec::new(),
        notes,
        next,
        commands,
    })
}

/// Returns notes on other sysctl files that set the same. By sysctl.d(5) the file whose name sorts
/// last wins.
fn other_sysctls(tree: &Tree) -> Result<Vec<String>, PersistError> {
    let root = tree.root();
    let own = root.join(SYSCTL);
    let mut paths = vec![root.join("etc/sysctl.conf")];
    for directory in ["etc/sysctl.d", "run/sysctl.d", "usr/local/lib/sysctl.d", "usr/lib/sysctl.d"] {
        match files::listed(tree, &root.join(directory), "conf") {
            // Files outside of the image are not the image's.
            Err(PersistError::LinkOnTheWay(_)) => {}
            listed => paths.extend(listed?),
        }
    }
    let mut notes = Vec::new();
    for path in paths.into_iter().filter(|path| *path != own) {
        // Links are common here (99-sysctl.conf) and lead to files that are looked at anyway.
        let Ok(Some(text)) = files::read(tree, &path) else { continue };
        let keys =
            text.lines().filter_map(|line| Some(line.split_once('=')?.0.trim().trim_start_matches('-')));
        let ours = [
            "vm.nr_hugepages",
            "vm/nr_hugepages",
            "vm.nr_overcommit_hugepages",
            "vm/nr_overcommit_hugepages",
        ];
        for key in keys.filter(|key| ours.contains(key)) {
            notes.push(format!("{} sets {key} too: the file whose name sorts last wins", path.display()));
        }
    }
    Ok(notes)
}

#[cfg(test)]
mod tests;
