//! What keeps a JVM from having pages of the pool, for the user that starts it. Each says how it is repaired.

use crate::jvm::Java;
use crate::jvm::need::Need;
use crate::jvm::options::Options;
use megapage_kernel::limits::{Limit, Sysctls};
use megapage_units::{BASE_PAGE, Bytes, PageSize};
use std::fmt;

/// Address space that a JVM reserves beside what comes from the pool: class space, thread stacks, libraries.
const ADDRESSES_BESIDES: Bytes = Bytes::mib(1536);
/// Private memory that a JVM needs beside it.
const DATA_BESIDES: Bytes = Bytes::mib(128);

/// What surrounds the run, as far as a JVM's large pages depend on it.
#[derive(Clone, Debug)]
pub struct Surroundings {
    /// All memory, or what the tightest control group lets the program have of it.
    pub memory: Bytes,
    /// The size of pages that a program gets that names none; `None`: no hugetlb pages.
    pub default_page: Option<PageSize>,
    /// What control groups leave of pages of 2 MiB; `None`: no limit that can be seen.
    pub room_2m: Option<Bytes>,
    /// The same of 1 GiB.
    pub room_1g: Option<Bytes>,
    /// RLIMIT_DATA.
    pub data: Limit,
    /// RLIMIT_AS.
    pub address_space: Limit,
    /// The machine's settings.
    pub sysctls: Sysctls,
    /// Whether shmget(SHM_HUGETLB) is permitted: CAP_IPC_LOCK, or a group in `vm.hugetlb_shm_group`.
    pub shm_permitted: bool,
    /// The main group of the user.
    pub group: u32,
    /// Tries whether the caller is given a page of 2 MiB, and says why not. A function, for a trial takes a page.
    pub page_refused: fn() -> Option<String>,
}

impl Surroundings {
    /// So much memory, pages of 2 MiB by default, and nothing in the way of a user without rights: what others differ from.
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

/// One thing in the way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Obstacle {
    /// What it is, in a sentence without a full stop.
    pub what: String,
    /// Shell lines that repair it; for root, unless they begin with `ulimit`.
    pub remedy: Vec<String>,
}

impl fmt::Display for Obstacle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        if self.remedy.is_empty() { Ok(()) } else { write!(f, "; helps: {}", self.remedy.join("; ")) }
    }
}

/// What is looked at.
#[derive(Clone, Copy, Debug)]
pub struct Question<'a> {
    /// The installation.
    pub java: &'a Java,
    /// Its options.
    pub options: &'a Options,
    /// What it takes.
    pub need: &'a Need,
    /// The pool that its heap is to come from.
    pub page: PageSize,
    /// Bytes that a new mapping can have of pages of 2 MiB, and of 1 GiB.
    pub pools: (Bytes, Bytes),
}

/// Everything in the way of large pages; empty: nothing that can be known before.
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
    // Shared mappings are no data: ZGC's heap, and segments.
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
    // Where a page should be there, the kernel is asked for one: seccomp, security modules, memory policies.
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

/// Pages needed of each pool.
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

/// What System V segments need beside the pool; mappings need none of it.
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
