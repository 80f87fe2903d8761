//! Facts of a healthy machine, and for each kind of finding the fault that causes it.

use crate::catalog::{self, Kind};
use crate::facts::*;
use megapage_kernel::ability::{KnownBy, Standing, THP};
use megapage_kernel::cgroup::{CgroupVersion, Cgroups, Charge, HugetlbCharge, Level, Lineage};
use megapage_kernel::hugetlb::PoolCounts;
use megapage_kernel::identity::Capabilities;
use megapage_kernel::limits::{Limit, Limits, Sysctls};
use megapage_kernel::memory_nodes::MemoryNodes;
use megapage_kernel::probe::{Answer, Trial};
use megapage_kernel::thp::{Khugepaged, ThpDefrag, ThpEnabled, ThpSettings, ThpShmem, ThpSize};
use megapage_launch::program::{Allocator, Import, Linkage, Privilege, Program, Runtime};
use megapage_units::{Bytes, PageSize};
use std::path::PathBuf;

pub(super) const SIZE: PageSize = PageSize::HUGE_2M;
pub(super) const SYS_NICE: Capabilities = Capabilities(1 << 23);
pub(super) const UNLIMITED: Limit = Limit(None);

/// Returns a machine and a user for whom everything works.
pub(super) fn healthy() -> Facts {
    Facts {
        user: User {
            name: "tomcat".into(),
            uid: 998,
            gid: 997,
            groups: vec![997, 27],
            groups_of_machine: vec![997, 27],
            capabilities: SYS_NICE,
            is_caller: true,
        },
        kernel: Kernel::default(),
        thp: Some(ThpSettings {
            enabled: ThpEnabled::Always,
            defrag: ThpDefrag::Madvise,
            shmem: Some(ThpShmem::Advise),
            pmd_size: Bytes::mib(2),
            sizes: vec![
                size(64 << 10, ThpEnabled::Never),
                size(1 << 20, ThpEnabled::Always),
                size(2 << 20, ThpEnabled::Inherit),
            ],
            khugepaged: Some(Khugepaged {
                defrag: true,
                max_ptes_none: 511,
                pages_to_scan: 4096,
                scan_sleep_ms: 10_000,
                pages_collapsed: 0,
            }),
            shrink_underused: Some(true),
        }),
        thp_allowed: Some(true),
        default_size: Some(SIZE),
        pools: vec![Pool { page_size: SIZE, counts: pool(100, 90, 10), on_nodes: None }],
        memory: Memory {
            total: Bytes::gib(16),
            available: Bytes::gib(8),
            in_huge_blocks: Some(Bytes::gib(4)),
        },
        sysctls: Sysctls {
            hugetlb_shm_group: Some(27),
            overcommit_memory: Some(0),
            max_map_count: Some(65_530),
            shmmax: Some(Bytes(u64::MAX - (1 << 24))),
            shmall: Some(u64::MAX - (1 << 24)),
        },
        limits: Some(UserLimits {
            limits: Limits { locked: UNLIMITED, address_space: UNLIMITED, data: UNLIMITED },
            source: "this process".into(),
        }),
        login_memlock: None,
        mounts: vec![HugetlbMount {
            point: "/dev/hugepages".into(),
            page_size: SIZE,
            size: None,
            read_only: false,
            steps: vec![
                step("/", 0, 0, 0o755),
                step("/dev", 0, 0, 0o755),
                step("/dev/hugepages", 0, 27, 0o1770),
            ],
        }],
        persistent_segments: Vec::new(),
        cgroups: Cgroups::default(),
        nodes: MemoryNodes::default(),
        confinement: Confinement::default(),
        glibc: Some((2, 36)),
        tunables: None,
        morecore: None,
        reporting_balloon: None,
        off: None,
        trials: Vec::new(),
        untried: None,
        program: None,
        reach: None,
    }
}

pub(super) fn size(bytes: u64, enabled: ThpEnabled) -> ThpSize {
    ThpSize { page_size: PageSize::new(bytes).unwrap(), enabled, shmem: Some(ThpShmem::Inherit) }
}

pub(super) fn pool(total: u64, free: u64, reserved: u64) -> PoolCounts {
    PoolCounts { total, free, reserved: Some(reserved), surplus: 0, overcommit: Some(0) }
}

pub(super) fn step(path: &str, uid: u32, gid: u32, mode: u32) -> Step {
    Step { path: path.into(), uid, gid, mode }
}

pub(super) fn thp(facts: &mut Facts) -> &mut ThpSettings {
    facts.thp.as_mut().unwrap()
}

pub(super) fn tried(facts: &mut Facts, trial: Trial, answer: Answer) {
    facts.trials.push(Tried { trial, outcome: Ok(answer) });
}

pub(super) fn refused(call: &'static str, errno: i32) -> Answer {
    Answer::Refused { call, errno }
}

/// Sets a hugetlb limit on the user's group; `None` for unlimited.
pub(super) fn limited(facts: &mut Facts, fault: Option<Bytes>, reservation: Option<Bytes>, usage: Bytes) {
    facts.cgroups.hugetlb = Some(Lineage {
        version: CgroupVersion::V2,
        path: "/app".into(),
        levels: vec![Level {
            directory: "/cgroup/app".into(),
            charged: vec![HugetlbCharge {
                page_size: SIZE,
                fault: Charge { limit: fault, usage },
                reservation: Charge { limit: reservation, usage },
            }],
        }],
        complete: true,
    });
}

pub(super) fn with_program(facts: &mut Facts, change: impl FnOnce(&mut Program)) {
    let mut program = Program::ordinary("/usr/bin/app");
    change(&mut program);
    facts.program = Some(program);
}

pub(super) fn import(symbol: &str) -> Import {
    Import { symbol: symbol.into(), file: PathBuf::from("/usr/lib/libx.so") }
}

/// Makes the kernel one that was built without transparent huge pages.
pub(super) fn without_thp(facts: &mut Facts) {
    facts.thp = None;
    facts.kernel.abilities = vec![(&THP, Standing { present: false, known_by: KnownBy::Trial })];
}

/// Kind of finding, and the fault that causes it.
pub(super) type Case = (&'static Kind, fn(&mut Facts));

pub(super) fn cases() -> Vec<Case> {
    use catalog::*;
    vec![
        (&MEGAPAGE_OFF, |facts| facts.off = Some("/etc/megapage/off exists".into())),
        (&THP_ABSENT, without_thp),
        (&THP_UNSEEN, |facts| facts.thp = None),
        (&THP_NEVER, |facts| thp(facts).enabled = ThpEnabled::Never),
        (&THP_ON_REQUEST, |facts| thp(facts).enabled = ThpEnabled::Madvise),
        (&THP_DISABLED_FOR_PROCESS, |facts| facts.thp_allowed = Some(false)),
        (&THP_DEFRAG_NEVER, |facts| thp(facts).defrag = ThpDefrag::Never),
        (&THP_DEFRAG_STALLS, |facts| thp(facts).defrag = ThpDefrag::Always),
        (&KHUGEPAGED_OFF, |facts| thp(facts).khugepaged.as_mut().unwrap().pages_to_scan = 0),
        (&SHMEM_THP_OFF, |facts| thp(facts).shmem = Some(ThpShmem::Never)),
        (&MTHP_OFF, |facts| thp(facts).sizes[1].enabled = ThpEnabled::Never),
        (&MEMORY_FRAGMENTED, |facts| facts.memory.in_huge_blocks = Some(Bytes::mib(300))),
        (&MEMORY_SHORT, |facts| facts.memory.available = Bytes::mib(800)),
        (&HUGETLB_ABSENT, |facts| {
            facts.pools.clear();
            facts.default_size = None;
        }),
        (&POOL_EMPTY, |facts| facts.pools[0].counts = pool(0, 0, 0)),
        (&POOL_TAKEN, |facts| facts.pools[0].counts = pool(100, 30, 30)),
        (&POOL_ELSEWHERE, |facts| {
            facts.nodes = MemoryNodes { allowed: vec![0, 1], bound: Some(vec![1]) };
            facts.pools[0].on_nodes = Some(0);
        }),
        (&POOL_ON_DEMAND, |facts| {
            facts.pools[0].counts = PoolCounts { overcommit: Some(9), ..pool(4, 0, 0) }
        }),
        (&POOL_SIZE_UNUSED, |facts| {
            facts.pools.push(Pool { page_size: PageSize::HUGE_1G, counts: pool(0, 0, 0), on_nodes: None });
        }),
        (&SHM_NOT_PERMITTED, |facts| facts.sysctls.hugetlb_shm_group = Some(0)),
        (&SHM_BY_MEMLOCK, |facts| {
            facts.sysctls.hugetlb_shm_group = Some(0);
            tried(facts, Trial::ShmPermission { size: SIZE, bytes: SIZE.bytes() }, Answer::Obtained);
        }),
        (&SHMMAX_SMALL, |facts| facts.sysctls.shmmax = Some(Bytes::mib(32))),
        (&MEMLOCK_LIMITED, |facts| facts.limits.as_mut().unwrap().limits.locked = Limit(Some(Bytes::mib(8)))),
        (&ADDRESS_SPACE_LIMITED, |facts| {
            facts.limits.as_mut().unwrap().limits.address_space = Limit(Some(Bytes::gib(4)));
        }),
        (&OVERCOMMIT_STRICT, |facts| facts.sysctls.overcommit_memory = Some(2)),
        (&MAP_COUNT_LOW, |facts| facts.memory.total = Bytes::gib(129)),
        (&HUGETLBFS_NOT_MOUNTED, |facts| facts.mounts.clear()),
        (&HUGETLBFS_DENIED, |facts| facts.mounts[0].steps[2].mode = 0o750),
        (&HUGETLBFS_SIZE_LIMITED, |facts| facts.mounts[0].size = Some(Bytes::mib(64))),
        (&SEGMENTS_KEPT, |facts| {
            let segment = |number: u64| PersistentSegment {
                path: format!("/dev/hugepages/megapage.0.app/s{number}").into(),
                memory: Bytes::mib(20 - 2 * number),
            };
            facts.persistent_segments = (0..7).map(segment).collect();
        }),
        (&CGROUP_HUGETLB_FULL, |facts| limited(facts, Some(Bytes::mib(8)), None, Bytes::mib(7))),
        (&CGROUP_HUGETLB_SIGBUS, |facts| limited(facts, Some(Bytes::mib(64)), None, Bytes::ZERO)),
        (&CGROUP_HUGETLB_HIDDEN, |facts| {
            limited(facts, None, None, Bytes::ZERO);
            facts.cgroups.hugetlb.as_mut().unwrap().complete = false;
        }),
        (&CGROUP_MEMORY_TIGHT, |facts| {
            let charged = Charge { limit: Some(Bytes::gib(1)), usage: Bytes::mib(1000) };
            facts.cgroups.memory = Some(Lineage {
                version: CgroupVersion::V2,
                path: "/app".into(),
                levels: vec![Level { directory: "/cgroup/app".into(), charged }],
                complete: true,
            });
        }),
        (&FREE_MEMORY_REPORTED, |facts| facts.reporting_balloon = Some("virtio0".into())),
        (&CONTAINER, |facts| facts.confinement.container = Some("/run/.containerenv".into())),
        (&SECCOMP_FILTER, |facts| facts.confinement.seccomp_filter = true),
        (&SELINUX_ENFORCING, |facts| facts.confinement.selinux_enforcing = true),
        (&COLLAPSE_UNSUPPORTED, |facts| tried(facts, Trial::CollapseOther, refused("process_madvise", 22))),
        (&OUTSIDE_NOT_PERMITTED, |facts| facts.user.capabilities = Capabilities::NONE),
        (&POPULATE_UNSUPPORTED, |facts| tried(facts, Trial::PopulateWrite, refused("madvise", 22))),
        (&REFUSED_UNEXPLAINED, |facts| tried(facts, Trial::MapHugetlb(SIZE), refused("mmap", 1))),
        (&GLIBC_OLD, |facts| facts.glibc = Some((2, 31))),
        (&TUNABLE_SET, |facts| facts.tunables = Some("glibc.malloc.hugetlb=0:glibc.malloc.hugetlb=2".into())),
        (&TUNABLE_DEAD, |facts| {
            facts.tunables = Some("glibc.malloc.hugetlb=2".into());
            facts.pools[0].counts = pool(0, 0, 0);
        }),
        (&MORECORE_DEAD, |facts| facts.morecore = Some("yes".into())),
        (&PROGRAM_PRIVILEGED, |facts| {
            with_program(facts, |program| program.privilege = Some(Privilege::SetUser(0)));
        }),
        (&PROGRAM_STATIC, |facts| with_program(facts, |program| program.linkage = Linkage::Static)),
        (&PROGRAM_NOT_GLIBC, |facts| with_program(facts, |program| program.linkage = Linkage::Musl)),
        (&PROGRAM_FOREIGN, |facts| with_program(facts, |program| program.native = false)),
        (&PROGRAM_OWN_ALLOCATOR, |facts| {
            with_program(facts, |program| program.allocator = Some(Allocator::InExecutable));
        }),
        (&PROGRAM_FORKS, |facts| with_program(facts, |program| program.forks.push(import("fork")))),
        (&PROGRAM_LIBRARIES_MISSING, |facts| {
            with_program(facts, |program| program.missing.push("libnone.so.1".into()));
        }),
        (&PROGRAM_JVM, |facts| with_program(facts, |program| program.runtime = Some(Runtime::Jvm))),
        (&PROGRAM_GO, |facts| with_program(facts, |program| program.runtime = Some(Runtime::Go))),
        (&PROGRAM_NODE, |facts| with_program(facts, |program| program.runtime = Some(Runtime::Node))),
        (&PROGRAM_PYTHON, |facts| with_program(facts, |program| program.runtime = Some(Runtime::Python))),
        (&PROGRAM_PHP, |facts| with_program(facts, |program| program.runtime = Some(Runtime::Php))),
        (&PROGRAM_DISABLES_THP, |facts| {
            with_program(facts, |program| program.executable = "/usr/bin/redis-server".into());
        }),
        (&PROGRAM_HAS_SETTINGS, |facts| {
            with_program(facts, |program| program.executable = "/usr/lib/postgresql/15/bin/postgres".into());
        }),
    ]
}
