//! Programs with special behaviour or settings for huge pages, one entry each. `enable`, `advise`,
//! `doctor --for` and `run --dry-run` read the same table. The needs of language runtimes are in
//! [`crate::runtimes`].

use crate::request::{Fork, Heap, Request};
use megapage_units::{Bytes, HUGE_2M};

/// Amounts of memory that a setting is for.
#[derive(Clone, Copy, Debug, Default)]
pub struct Needs {
    /// Memory shared with other processes; `None` if not measured.
    pub shared: Option<Bytes>,
    /// Private memory that huge pages could map; `None` if not measured.
    pub private: Option<Bytes>,
}

/// A setting of the program itself.
#[derive(Clone, Copy, Debug)]
pub struct Setting {
    /// Returns a line of its configuration, or an argument, and the preparation that it needs.
    pub what: fn(&Needs) -> String,
    /// The place for the setting, and its effect.
    pub why: &'static str,
    /// True if it has an effect only if THP is set to `always`.
    pub takes_always: bool,
    /// True if it belongs to a language runtime: `megapage run` makes it itself.
    pub is_of_runtime: bool,
}

/// The settings of a program.
#[derive(Clone, Copy, Debug)]
pub struct Application {
    /// File names of the program.
    pub names: &'static [&'static str],
    /// Prefixes of the names of its services, as Debian and upstream call them.
    pub units: &'static [&'static str],
    /// Path of the program, if its unit starts it by a script. `*` stands for one name: the
    /// greatest number, else the last name.
    pub program: Option<&'static str>,
    /// The program's own setting.
    pub setting: Option<Setting>,
    /// The purpose of its forks.
    pub fork: Fork,
    /// True if the server is a child of the process that its unit starts.
    pub by_child: bool,
    /// The variable from which the script that starts its JVM takes options.
    pub java_variable: Option<&'static str>,
    /// Arguments that a gain needs if THP is set to `always`.
    pub arguments: &'static [&'static str],
    /// True if it calls prctl(PR_SET_THP_DISABLE) at its start.
    pub disables_thp: bool,
    /// A risk to know in advance.
    pub risk: Option<&'static str>,
    /// A mistake to avoid, and the reason.
    pub avoid: Option<&'static str>,
}

const PLAIN: Application = Application {
    names: &[],
    units: &[],
    program: None,
    setting: None,
    fork: Fork::Auto,
    by_child: false,
    java_variable: None,
    arguments: &[],
    disables_thp: false,
    risk: None,
    avoid: None,
};

/// All known programs.
pub const APPLICATIONS: [Application; 16] = [
    Application {
        // redis.conf, "KERNEL transparent hugepage CONTROL".
        names: &["redis-server", "valkey-server", "keydb-server"],
        units: &["redis-server", "redis", "valkey-server", "valkey", "keydb-server"],
        setting: Some(Setting {
            what: |_| "disable-thp no".into(),
            why: "in its configuration: otherwise it switches transparent huge pages off for itself",
            takes_always: true,
            is_of_runtime: false,
        }),
        fork: Fork::Snapshot,
        arguments: &["--disable-thp", "no"],
        disables_thp: true,
        risk: Some(
            "BGSAVE and AOF rewrites fork: each first write afterwards splits a huge page; megapage run --fork snapshot \
             makes it huge again",
        ),
        avoid: Some("--heap 2m and --pool: a write after the fork of a save copies 2 MiB"),
        ..PLAIN
    },
    Application {
        // memcached(1).
        names: &["memcached"],
        units: &["memcached"],
        program: Some("/usr/bin/memcached"),
        setting: Some(Setting {
            what: |_| "memcached -L".into(),
            why: "allocates its slabs at once, on huge pages",
            takes_always: false,
            is_of_runtime: false,
        }),
        ..PLAIN
    },
    Application {
        // PostgreSQL documentation, 18.4.5 Linux Huge Pages.
        names: &["postgres", "postmaster"],
        units: &["postgresql"],
        program: Some("/usr/lib/postgresql/*/bin/postgres"),
        setting: Some(Setting {
            what: |needs| match needs.shared {
                Some(shared) => format!("huge_pages = on, after megapage pool set 2MB:+{}", pages(shared)),
                None => "huge_pages = on, after megapage pool set 2MB:+N with N of postgres -C \
                         shared_memory_size_in_huge_pages"
                    .into(),
            },
            why: "in postgresql.conf: moves its shared memory to hugetlb pages",
            takes_always: false,
            is_of_runtime: false,
        }),
        by_child: true,
        avoid: Some("huge_pages = on without the pages in the pool: the server does not start"),
        ..PLAIN
    },
    Application {
        // MySQL reference manual, 10.12.3.3 Enabling Large Page Support.
        names: &["mysqld", "mariadbd"],
        units: &["mariadb", "mysql", "mysqld"],
        program: Some("/usr/sbin/mariadbd"),
        setting: Some(Setting {
            what: |needs| match needs.private {
                Some(private) => format!("large-pages, after megapage pool set 2MB:+{}", pages(private)),
                None => "large-pages, after megapage pool set 2MB:+N for the sum of its buffers and a tenth"
                    .into(),
            },
            why: "in the [mysqld] section: takes the buffer pool from the hugetlb pool; its user needs LimitMEMLOCK=infinity \
                  and a group in vm.hugetlb_shm_group",
            takes_always: false,
            is_of_runtime: false,
        }),
        disables_thp: true,
        avoid: Some(
            "large-pages with a pool that is too small: it falls back to base pages with a line in its log",
        ),
        ..PLAIN
    },
    Application {
        // MongoDB manual, "Disable Transparent Hugepages" (7.0) and "TCMalloc Performance
        // Optimization" (8.0).
        names: &["mongod", "mongos"],
        units: &["mongod", "mongodb"],
        setting: Some(Setting {
            what: |_| {
                "THP at always, defrag at defer+madvise, khugepaged/max_ptes_none at 0 (since 8.0)".into()
            },
            why: "for the machine (megapage doctor shows them): its tcmalloc asks for nothing itself",
            takes_always: false,
            is_of_runtime: false,
        }),
        avoid: Some("THP at always for MongoDB 7.0 and older: their manual asks for never, because of bloat"),
        ..PLAIN
    },
    Application {
        // Elasticsearch and OpenSearch warn of JAVA_TOOL_OPTIONS and drop it.
        names: &["elasticsearch"],
        units: &["elasticsearch"],
        java_variable: Some("ES_JAVA_OPTS"),
        avoid: Some("-XX:+UseLargePages with a pool below -Xmx: the JVM runs on base pages"),
        ..PLAIN
    },
    Application {
        names: &["opensearch"],
        units: &["opensearch"],
        java_variable: Some("OPENSEARCH_JAVA_OPTS"),
        avoid: Some("-XX:+UseLargePages with a pool below -Xmx: the JVM runs on base pages"),
        ..PLAIN
    },
    Application {
        names: &["catalina.sh"],
        units: &["tomcat", "tomcat9", "tomcat10", "tomcat11"],
        java_variable: Some("CATALINA_OPTS"),
        ..PLAIN
    },
    Application {
        names: &["cassandra"],
        units: &["cassandra"],
        java_variable: Some("JVM_EXTRA_OPTS"),
        ..PLAIN
    },
    Application {
        names: &["solr", "kafka-server-start.sh", "jenkins", "zkServer.sh", "logstash"],
        units: &["solr", "kafka", "jenkins", "zookeeper", "logstash"],
        java_variable: Some("JAVA_TOOL_OPTIONS"),
        ..PLAIN
    },
    Application {
        names: &["java"],
        setting: Some(Setting {
            what: |_| "-XX:+UseTransparentHugePages".into(),
            why: "an option of the JVM: its heap asks for huge pages",
            takes_always: false,
            is_of_runtime: true,
        }),
        avoid: Some("-XX:+UseLargePages with a pool below -Xmx: the JVM runs on base pages"),
        ..PLAIN
    },
    Application {
        // node(1).
        names: &["node", "nodejs"],
        setting: Some(Setting {
            what: |_| "--use-largepages=on".into(),
            why: "an option of Node.js, for its code alone; V8's heap takes megapage run",
            takes_always: false,
            is_of_runtime: true,
        }),
        ..PLAIN
    },
    Application {
        // ClickHouse's own warnings at start.
        names: &["clickhouse", "clickhouse-server"],
        units: &["clickhouse-server"],
        avoid: Some(
            "THP at always: the server warns of it, since its allocator counts memory that huge pages add",
        ),
        ..PLAIN
    },
    Application {
        // qemu(1), -object memory-backend-memfd.
        names: &["qemu-system-x86_64", "qemu-system-aarch64", "qemu-kvm", "kvm"],
        setting: Some(Setting {
            what: |_| "-object memory-backend-memfd,hugetlb=on,hugetlbsize=2M (libvirt: <hugepages/>)".into(),
            why: "takes the guest's memory from the pool; without it QEMU advises THP itself",
            takes_always: false,
            is_of_runtime: false,
        }),
        avoid: Some("a service of libvirtd: guests are no part of it, and have settings of their own"),
        ..PLAIN
    },
    Application { names: &["ruby"], disables_thp: true, ..PLAIN },
    Application {
        names: &["php-fpm", "php"],
        units: &["php-fpm"],
        setting: Some(Setting {
            what: |_| "USE_ZEND_ALLOC_HUGE_PAGES=1".into(),
            why: "in its environment: PHP's own heap asks for huge pages",
            takes_always: false,
            is_of_runtime: true,
        }),
        ..PLAIN
    },
];

/// Returns the pages of 2 MiB for `bytes`, and a tenth more for other mappings of a server.
fn pages(bytes: Bytes) -> u64 {
    (bytes.0 / HUGE_2M as u64 * 11).div_ceil(10).max(1)
}

impl Application {
    /// Returns the entry for a program with this file name. A version at the name's end, as in
    /// `php-fpm8.2`, is ignored.
    pub fn of_program(name: &str) -> Option<&'static Application> {
        let plain = without_version(name);
        let is_it = |it: &&Application| it.names.contains(&name) || it.names.contains(&plain);
        APPLICATIONS.iter().find(is_it)
    }

    /// Returns the entry for a service with this name, without `.service` and instance.
    pub fn of_unit(prefix: &str) -> Option<&'static Application> {
        let php = prefix.strip_prefix("php").and_then(|rest| rest.strip_suffix("-fpm"));
        let prefix = if php.is_some_and(|version| !version.is_empty()) { "php-fpm" } else { prefix };
        APPLICATIONS.iter().find(|it| it.units.contains(&prefix))
    }

    /// Returns the options of `megapage run` for the program.
    pub fn options(&self) -> Vec<&'static str> {
        let mut options = Vec::new();
        if self.fork != Fork::Auto {
            options.extend(["--fork", self.fork.name()]);
        }
        options
    }

    /// Fills in the program's needs in a request, if the caller has not chosen. `by_script`: the
    /// started program is the script of its unit.
    pub fn complete(&self, request: &mut Request, by_script: bool) {
        if request.heap == Heap::None {
            return;
        }
        if request.fork == Fork::Auto
            && !matches!(request.heap, Heap::Hugetlb1G | Heap::Hugetlb2M)
            && request.pool.is_none()
        {
            request.fork = self.fork;
        }
        request.children |= self.by_child && by_script;
    }

    /// Returns the setting and the mistake to avoid, each in one line.
    pub fn lines(&self, needs: &Needs) -> Vec<String> {
        let setting = self.setting.map(|it| format!("its own setting: {}, {}", (it.what)(needs), it.why));
        let avoid = self.avoid.map(|it| format!("avoid {it}"));
        setting.into_iter().chain(avoid).collect()
    }
}

fn without_version(name: &str) -> &str {
    name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '.')
}

#[cfg(test)]
mod tests;
