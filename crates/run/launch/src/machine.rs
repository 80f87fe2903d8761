//! Facts about the machine and the caller that the choice of a mechanism needs.

use crate::broker::Broker;
use crate::jvm::obstacles::Surroundings;
use crate::switched_off::{SwitchedOff, THP_VARIABLE};
use crate::versions::{self, Versions};
use megapage_act::promote::{lacking_ability, lacking_right};
use megapage_kernel::ability::{PAGEMAP_SCAN, THP};
use megapage_kernel::cgroup::Cgroups;
use megapage_kernel::hugetlb::{self, PoolScope};
use megapage_kernel::limits::{Limits, Sysctls};
use megapage_kernel::own_segments::try_replacing;
use megapage_kernel::probe::{Answer, Trial, attempt};
use megapage_kernel::process::{Status, read_own_status};
use megapage_kernel::thp::{self, ThpEnabled, ThpShmem, anonymous_2m};
use megapage_kernel::{FILTERS_VARIABLE, KernelError, KernelRoot, meminfo, optional};
use megapage_units::{Bytes, PageSize};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Environment variable with the library to preload, in place of the one installed with the
/// command.
pub const LIBRARY_VARIABLE: &str = "MEGAPAGE_LIBRARY";
/// File name of that library. The library finds itself in LD_PRELOAD by it.
pub const LIBRARY_NAME: &str = "libmegapage.so";
/// Environment variable with the library that moves text, in place of the one installed with the
/// command.
pub const TEXT_LIBRARY_VARIABLE: &str = "MEGAPAGE_TEXT_LIBRARY";
/// File name of that library.
pub const TEXT_LIBRARY_NAME: &str = "libmegapage_text.so";

/// Facts that are gathered once before a run.
#[derive(Clone, Debug)]
pub struct Machine {
    /// The library to preload, or the reason why there is none.
    pub library: Result<PathBuf, String>,
    /// The library to preload for moving text, or the reason why there is none.
    pub text_library: Result<PathBuf, String>,
    /// Versions that these two libraries need of the program's C library, and of its other
    /// libraries.
    pub needed: Versions,
    /// Tries if programs of the caller can move their text, and returns the reason if not. The
    /// kernel refuses the caller the same calls as its programs. It is a function because only a
    /// run that moves text needs it. A security module logs a refused attempt, and a seccomp filter
    /// may kill for it.
    pub text_refused: fn() -> Option<String>,
    /// Ok if a process of the caller can have 2 MiB THP on request, else the reason why not.
    pub thp: Result<(), String>,
    /// Returns the setting for shared memory in pages of 2 MiB if it is `never` or `deny`. It is a
    /// function because only a run of ZGC needs it.
    pub shared_thp_off: fn() -> Option<ThpShmem>,
    /// True if the collapse of another process's memory is ruled out too. Only prctl rules it out;
    /// a collapse ignores the settings.
    pub collapse_off: bool,
    /// The way in which transparent huge pages are switched off for the caller, if they are.
    /// `megapage run` clears that, unless it was set on purpose.
    pub switched_off: Option<SwitchedOff>,
    /// Bytes of 2 MiB pages that a new mapping can have: available pages and overcommit.
    pub pool_2m: Bytes,
    /// Bytes of 1 GiB pages that a new mapping can have; they cannot be overcommitted.
    pub pool_1g: Bytes,
    /// True if a hugetlb fault may be refused after its mapping was granted (a control group's
    /// limit).
    pub hugetlb_may_be_refused: bool,
    /// Bytes of memory that control groups still let the caller have; `None`: no visible limit.
    pub memory_room: Option<Bytes>,
    /// True if memory lies on several nodes: a memory policy may ask for pages of a node that has
    /// none.
    pub several_nodes: bool,
    /// The broker of pre-zeroed pages, if the run has one.
    pub broker: Option<Broker>,
    /// The ability of the kernel, or the right, that external promotion lacks.
    pub promotion_lacks: Option<String>,
    /// True if the caller may read processes of other users.
    pub may_trace_others: bool,
    /// True if the preloaded library can collapse memory that a program maps without malloc. The
    /// kernel then shows a process which of its memory is on base pages (PAGEMAP_SCAN).
    pub collapses_own_mappings: bool,
    /// Further facts on which a JVM's large pages depend.
    pub surroundings: Surroundings,
    /// The value of [`FILTERS_VARIABLE`] for the program; `None` if none is needed.
    pub filters: Option<String>,
    /// The environment of the program, without values that are not text.
    pub environment: BTreeMap<String, String>,
}

impl Machine {
    /// Gathers the facts for the calling process. Does not ask a broker.
    pub fn read(root: &KernelRoot) -> Result<Machine, KernelError> {
        let environment: BTreeMap<String, String> = std::env::vars_os()
            .filter_map(|(k, v)| Some((k.into_string().ok()?, v.into_string().ok()?)))
            .collect();
        let own = read_own_status(root)?;
        // The flag is inherited over fork and exec. The program has it as the caller has, unless
        // the launcher clears it.
        let mut switched_off = SwitchedOff::of(root, &own);
        if let Some(off) = &mut switched_off {
            off.on_purpose |= environment.get(THP_VARIABLE).is_some_and(|kind| !kind.is_empty());
        }
        let disallowed = switched_off.as_ref().is_some_and(|it| it.on_purpose);
        let thp = match anonymous_2m(root)? {
            _ if disallowed => Err("prctl(PR_SET_THP_DISABLE) is in force for this process".into()),
            None if THP.is_there(root) => Ok(()),
            None => Err("the kernel was built without transparent huge pages".to_string()),
            Some(ThpEnabled::Never) => Err("transparent huge pages of 2 MiB are set to 'never'".into()),
            Some(_) => Ok(()),
        };
        let groups = Cgroups::read(root, None)?;
        let library = find_library(LIBRARY_NAME, LIBRARY_VARIABLE, &environment);
        let text_library = find_library(TEXT_LIBRARY_NAME, TEXT_LIBRARY_VARIABLE, &environment);
        let mut needed = Versions::new();
        let both = [&library, &text_library].into_iter().flatten();
        // The loader ignores a file that cannot be read as a library.
        for (file, versions) in both.filter_map(|library| versions::needed(library).ok()).flatten() {
            needed.entry(file).or_default().extend(versions);
        }
        Ok(Machine {
            library,
            text_library,
            needed,
            text_refused: || try_replacing().err().map(|refused| refused.to_string()),
            thp,
            shared_thp_off: || {
                let settings = thp::settings(&KernelRoot::live()).ok()??;
                let setting = settings.shared(PageSize::HUGE_2M);
                matches!(setting, ThpShmem::Never | ThpShmem::Deny).then_some(setting)
            },
            collapse_off: disallowed,
            switched_off,
            pool_2m: pool(root, PageSize::HUGE_2M)?,
            pool_1g: pool(root, PageSize::HUGE_1G)?,
            hugetlb_may_be_refused: groups.hugetlb_fault_may_be_refused(),
            memory_room: groups.memory_room(),
            several_nodes: hugetlb::nodes(root)?.len() > 1,
            broker: None,
            promotion_lacks: match lacking_ability(root) {
                Some(ability) => Some(ability.lacking()),
                None => lacking_right(root, None)?,
            },
            may_trace_others: own.capabilities.sys_ptrace(),
            collapses_own_mappings: PAGEMAP_SCAN.is_there(root),
            surroundings: surroundings(root, &own, &groups)?,
            // The filters let the launcher make its calls, and so they let the library.
            filters: own.seccomp_filters.filter(|count| *count > 0).map(|count| count.to_string()),
            environment,
        })
    }

    /// Returns the variable from which the preloaded libraries know that the filters allow their
    /// calls.
    pub(crate) fn filters_variable(&self) -> Option<(String, OsString)> {
        Some((FILTERS_VARIABLE.into(), self.filters.clone()?.into()))
    }

    /// Returns the value of an environment variable; `None` if it is unset or empty.
    pub fn variable(&self, name: &str) -> Option<&str> {
        self.environment.get(name).map(String::as_str).filter(|value| !value.is_empty())
    }
}

fn surroundings(root: &KernelRoot, own: &Status, groups: &Cgroups) -> Result<Surroundings, KernelError> {
    let info = meminfo(root)?;
    let sysctls = Sysctls::read(root);
    let limits = Limits::read(root, None)?;
    let total = info.total.unwrap_or_default();
    let group_limits =
        groups.memory.iter().flat_map(|lineage| &lineage.levels).filter_map(|it| it.charged.limit);
    let room = |size| {
        let rooms = [groups.hugetlb_fault_room(size), groups.hugetlb_reservation_room(size)];
        rooms.into_iter().flatten().min()
    };
    let shm_group = sysctls.hugetlb_shm_group;
    Ok(Surroundings {
        memory: group_limits.fold(total, Bytes::min),
        default_page: info.default_huge_size,
        room_2m: room(PageSize::HUGE_2M),
        room_1g: room(PageSize::HUGE_1G),
        data: limits.data,
        address_space: limits.address_space,
        sysctls,
        shm_permitted: own.capabilities.ipc_lock()
            || shm_group.is_some_and(|group| own.gids[1] == group || own.groups.contains(&group)),
        group: own.gids[1],
        page_refused: || match attempt(None, &Trial::MapHugetlb(PageSize::HUGE_2M)) {
            Ok(Answer::Refused { call, errno }) => {
                Some(format!("{call}: {}", std::io::Error::from_raw_os_error(errno)))
            }
            Ok(Answer::Killed(signal)) => Some(format!("the trial was killed by signal {signal}")),
            // A failed trial proves nothing.
            Ok(Answer::Obtained | Answer::BasePages) | Err(_) => None,
        },
    })
}

/// Returns the bytes that a new mapping of pages of `size` can have.
fn pool(root: &KernelRoot, size: PageSize) -> Result<Bytes, KernelError> {
    let counts = optional(hugetlb::counts(root, size, PoolScope::Machine))?.unwrap_or_default();
    let surplus_room = counts.overcommit.unwrap_or(0).saturating_sub(counts.surplus);
    Ok(size.bytes() * (counts.available().unwrap_or(0).saturating_add(surplus_room)).min(1 << 30))
}

/// Finds a library: the one that the variable names, else the installed one (`../lib/megapage/`
/// from the command). Else it is the one built beside the command (Cargo's target directory).
fn find_library(
    name: &str,
    variable: &str,
    environment: &BTreeMap<String, String>,
) -> Result<PathBuf, String> {
    let named = environment.get(variable).map(Path::new);
    let usable = |path: &Path| -> Result<PathBuf, String> {
        let path = std::fs::canonicalize(path).map_err(|error| format!("{}: {error}", path.display()))?;
        // LD_PRELOAD is a list separated by blanks and colons, without quotes.
        match path.to_str() {
            Some(text) if !text.contains([' ', ':', '\t', '\n']) => Ok(path),
            _ => Err(format!("{}: LD_PRELOAD cannot hold a path with a blank or a colon", path.display())),
        }
    };
    if let Some(named) = named.filter(|path| !path.as_os_str().is_empty()) {
        return usable(named).map_err(|error| format!("{variable}: {error}"));
    }
    let command = std::env::current_exe().map_err(|error| format!("own executable: {error}"))?;
    let directory = command.parent().unwrap_or(Path::new("/"));
    let candidates = [
        directory.join("../lib/megapage").join(name),
        directory.join(name),
        directory.join("deps").join(name),
    ];
    match candidates.iter().find(|path| path.is_file()) {
        Some(path) => usable(path),
        None => Err(format!(
            "{name} is not installed: looked for {}; {variable} can name it",
            candidates[0].display()
        )),
    }
}
