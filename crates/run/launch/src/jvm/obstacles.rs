//! Obstacles to pages of the pool for a JVM and the user that starts it. Each says how to remove
//! it.

use crate::jvm::Java;
use crate::jvm::need::Need;
use crate::jvm::options::Options;
use megapage_kernel::limits::{Limit, Sysctls};
use megapage_units::{BASE_PAGE, Bytes, PageSize};
use std::fmt;

/// Address space that a JVM reserves beside its memory from the pool: class space, thread stacks,
/// libraries.
const ADDRESSES_BESIDES: Bytes = Bytes::mib(1536);
/// Private memory that a JVM needs beside its memory from the pool.
const DATA_BESIDES: Bytes = Bytes::mib(128);

/// Facts around the run on which a JVM's large pages depend.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// Memory that the program may have: all, or the limit of its tightest control group.
    pub memory: Bytes,
    /// The page size for programs that name none; `None`: no hugetlb pages.
    pub default_page: Option<PageSize>,
    /// Bytes of 2 MiB pages that control groups still permit; `None`: no visible limit.
    pub room_2m: Option<Bytes>,
    /// Bytes of 1 GiB pages that control groups still permit; `None`: no visible limit.
    pub room_1g: Option<Bytes>,
    /// RLIMIT_DATA.
    pub data: Limit,
    /// RLIMIT_AS.
    pub address_space: Limit,
    /// The machine's settings.
    pub sysctls: Sysctls,
    /// True if shmget(SHM_HUGETLB) is permitted: by CAP_IPC_LOCK, or by a group in
    /// `vm.hugetlb_shm_group`.
    pub shm_permitted: bool,
    /// The main group of the user.
    pub group: u32,
    /// Tries to get a page of 2 MiB, and returns the reason of a refusal. It is a function because
    /// a trial takes a page.
    pub page_refused: fn() -> Option<String>,
}

impl Surroundings {
    /// Returns surroundings with this memory, default pages of 2 MiB, and no obstacle for a user
    /// without rights. Others are made from it.
    pub fn open(memory: Bytes) -> Surroundings {
        Surroundings {
            memory,
            default_page: Some(PageSize::HUGE_2M),
            room_2m: None,
            room_1g: None,
            data: Limit(None),
            address_space: Limit(None),
            sysctls: Sysctls::default(),
            shm_permitted: false,
            group: 0,
            page_refused: || None,
        }
    }
}

/// One obstacle.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// A description, in a sentence without a full stop.
    pub what: String,
    /// Shell lines that remove it; they are for root, unless they begin with `ulimit`.
    pub remedy: Vec<String>,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, "; helps: {}", self.remedy.join("; ")) }
    }
}

/// The case to examine.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The installation.
    pub java: &'a Java,
    /// Its options.
    pub options: &'a Options,
    /// Its need of pool pages.
    pub need: &'a Need,
    /// The requested pool for its heap.
    pub page: PageSize,
    /// Bytes of 2 MiB pages, and of 1 GiB pages, that a new mapping can have.
    pub pools: (Bytes, Bytes),
}

/// Returns all obstacles to large pages that can be known in advance.
pub fn obstacles(question: &Question<'_>, around: &Surroundings) -> Vec<Obstacle> {
    let Question { java, options, need, page, .. } = *question;
    let mut found = Vec::new();
    let Some(default_page) = around.default_page else {
        found.push(plain("the kernel has no hugetlb pages".into()));
        return found;
    };
    if page != default_page && !java.is_at_least(17) {
        let version = java.version.unwrap_or_default();
        found.push(plain(format!(
            "Java {version} takes pages of the default size alone, {default_page} here (others since Java 17)"
        )));
    }
    found.extend(pools(question));
    found.extend(rooms(question, around));
    let total = need.total();
    // Shared mappings do not count as data: ZGC's heap, and segments.
    if !options.shm && !around.data.admits(total + DATA_BESIDES) {
        found.push(Obstacle {
            what: format!("RLIMIT_DATA is {}, and the JVM maps {total} privately", around.data),
            remedy: vec!["ulimit -d unlimited".into()],
        });
    }
    if !around.address_space.admits(total + ADDRESSES_BESIDES) {
        found.push(Obstacle {
            what: format!(
                "RLIMIT_AS is {}, and the JVM reserves {} of addresses",
                around.address_space,
                total + ADDRESSES_BESIDES
            ),
            remedy: vec!["ulimit -v unlimited".into()],
        });
    }
    if options.shm {
        found.extend(segments(need, around));
    }
    // No obstacle is known, so this asks the kernel for a page. Seccomp, security modules or memory
    // policies may refuse it.
    if found.is_empty() && page == PageSize::HUGE_2M {
        found.extend(
            (around.page_refused)().map(|why| plain(format!("a page was asked for and refused: {why}"))),
        );
    }
    found
}

fn plain(what: String) -> Obstacle {
    Obstacle { what, remedy: Vec::new() }
}

/// Returns the pages needed of each pool.
fn wanted(need: &Need, page: PageSize) -> Vec<(PageSize, u64)> {
    match page {
        PageSize::HUGE_1G => {
            vec![(PageSize::HUGE_1G, need.pages(page)), (PageSize::HUGE_2M, need.beside_heap_pages())]
        }
        page => vec![(page, need.pages(page))],
    }
}

fn pools(question: &Question<'_>) -> Vec<Obstacle> {
    let Question { need, page, pools: (pool_2m, pool_1g), .. } = *question;
    let short = |(size, pages): (PageSize, u64)| {
        let has = if size == PageSize::HUGE_1G { pool_1g } else { pool_2m };
        let missing = pages.saturating_sub(has.0 / size.bytes().0);
        (missing > 0).then(|| Obstacle {
            what: format!(
                "the pool of {size} pages has {} available, and the JVM takes {pages} ({})",
                has.0 / size.bytes().0,
                need.describe()
            ),
            remedy: vec![format!("megapage pool set {size}:+{missing}")],
        })
    };
    wanted(need, page).into_iter().filter_map(short).collect()
}

fn rooms(question: &Question<'_>, around: &Surroundings) -> Vec<Obstacle> {
    let tight = |(size, pages): (PageSize, u64)| {
        let room = if size == PageSize::HUGE_1G { around.room_1g } else { around.room_2m }?;
        let needed = size.bytes() * pages;
        (room < needed).then(|| {
            plain(format!(
                "a control group lets it have {room} more of {size} pages, and the JVM takes {needed}: raise \
                 hugetlb.*.max (hugetlb.*.limit_in_bytes) of that group"
            ))
        })
    };
    wanted(question.need, question.page).into_iter().filter_map(tight).collect()
}

/// Returns the obstacles to System V segments beside the pool; mappings do not have these.
fn segments(need: &Need, around: &Surroundings) -> Vec<Obstacle> {
    let without = "or leave -XX:+UseSHM out: mappings of the pool need no such right";
    let mut found = Vec::new();
    if !around.shm_permitted {
        found.push(Obstacle {
            what: format!(
                "-XX:+UseSHM needs CAP_IPC_LOCK or a group of the user in vm.hugetlb_shm_group, which is {} ({without})",
                around.sysctls.hugetlb_shm_group.unwrap_or(0)
            ),
            remedy: vec![format!("sysctl vm.hugetlb_shm_group={}", around.group)],
        });
    }
    let longest = need.heap.max(need.code_cache);
    if let Some(limit) = around.sysctls.shmmax.filter(|limit| *limit < longest) {
        found.push(Obstacle {
            what: format!(
                "kernel.shmmax is {limit}, and -XX:+UseSHM takes a segment of {longest} ({without})"
            ),
            remedy: vec![format!("sysctl kernel.shmmax={}", longest.0)],
        });
    }
    let pages = need.total().0.div_ceil(BASE_PAGE as u64);
    if let Some(limit) = around.sysctls.shmall.filter(|limit| *limit < pages) {
        found.push(Obstacle {
            what: format!("kernel.shmall is {limit} pages, and -XX:+UseSHM takes {pages} ({without})"),
            remedy: vec![format!("sysctl kernel.shmall={pages}")],
        });
    }
    found
}

#[cfg(test)]
mod tests;
