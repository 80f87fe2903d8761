//! The peers: every way to give a program's heap its pages that the benches compare, in one table.

use anyhow::{Result, bail};
use std::env;
use std::path::PathBuf;
use std::process::Command;

/// How a peer gets hold of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// As it is.
    Plain,
    /// With a library preloaded (ld.so(8), LD_PRELOAD).
    Preload(Library),
    /// With megapage's own library preloaded and nothing else done.
    OwnLibrary,
    /// Through `megapage run` with these arguments.
    Run(&'static [&'static str]),
}

/// A shared library that is not part of megapage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Library {
    /// Its file name, the version that programs link to included.
    pub file: &'static str,
    /// Where it comes from.
    pub package: Package,
}

/// Where a library comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Package {
    /// A Debian package.
    Debian(&'static str),
    /// A package of the Python index at this version, of which only the library is used.
    Python(&'static str, &'static str),
}

/// One configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// As on the command line and in every table.
    pub name: &'static str,
    /// How the program is started.
    pub start: Start,
    /// Environment variables that select the backing.
    pub variables: &'static [(&'static str, &'static str)],
    /// Whether it can use hugetlb pages: then a pool is reserved for its runs.
    pub pool: bool,
}

/// The configuration that all others are measured against: glibc, which never asks for huge pages.
pub const BASELINE: &str = "glibc";
/// The configuration that the gates are about: megapage's default.
pub const OURS: &str = "megapage";
/// The configuration whose start-up cost is bounded: the library alone.
pub const LIBRARY_ALONE: &str = "megapage-library";
/// The configuration that takes memory to be short: what it releases is measured, not how fast it is.
pub const SHORT: &str = "megapage-short";

const MIMALLOC_2: Library =
    Library { file: "libmimalloc.so.2.0", package: Package::Debian("libmimalloc2.0") };
pub(crate) const MIMALLOC_3: Library =
    Library { file: "libmimalloc.so.3", package: Package::Python("cmeel-mimalloc", "3.4.3") };
pub(crate) const JEMALLOC: Library =
    Library { file: "libjemalloc.so.2", package: Package::Debian("libjemalloc2") };
pub(crate) const TCMALLOC: Library =
    Library { file: "libtcmalloc_minimal.so.4", package: Package::Debian("libtcmalloc-minimal4") };
const LIBHUGETLBFS: Library =
    Library { file: "libhugetlbfs.so.0", package: Package::Debian("libhugetlbfs0") };

/// Every peer, in the order in which a round runs them.
pub const PEERS: &[Peer] = &[
    Peer { name: BASELINE, start: Start::Plain, variables: &[], pool: false },
    Peer {
        name: "glibc-thp",
        start: Start::Plain,
        variables: &[("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")],
        pool: false,
    },
    Peer {
        name: "glibc-hugetlb",
        start: Start::Plain,
        variables: &[("GLIBC_TUNABLES", "glibc.malloc.hugetlb=2")],
        pool: true,
    },
    Peer {
        name: "libhugetlbfs",
        start: Start::Preload(LIBHUGETLBFS),
        variables: &[("HUGETLB_MORECORE", "yes")],
        pool: true,
    },
    Peer { name: "mimalloc2", start: Start::Preload(MIMALLOC_2), variables: &[], pool: false },
    Peer {
        name: "mimalloc2-large",
        start: Start::Preload(MIMALLOC_2),
        variables: &[("MIMALLOC_LARGE_OS_PAGES", "1")],
        pool: true,
    },
    Peer { name: "mimalloc3", start: Start::Preload(MIMALLOC_3), variables: &[], pool: false },
    Peer {
        name: "mimalloc3-large",
        start: Start::Preload(MIMALLOC_3),
        variables: &[("MIMALLOC_ALLOW_LARGE_OS_PAGES", "1")],
        pool: true,
    },
    Peer {
        name: "jemalloc-thp",
        start: Start::Preload(JEMALLOC),
        variables: &[("MALLOC_CONF", "thp:always")],
        pool: false,
    },
    Peer { name: "tcmalloc", start: Start::Preload(TCMALLOC), variables: &[], pool: false },
    Peer { name: OURS, start: Start::Run(&[]), variables: &[], pool: true },
    Peer { name: "megapage-thp", start: Start::Run(&["--heap", "thp"]), variables: &[], pool: false },
    Peer {
        name: LIBRARY_ALONE,
        start: Start::OwnLibrary,
        variables: &[("MEGAPAGE_HEAP", "auto")],
        pool: true,
    },
    Peer {
        name: SHORT,
        start: Start::OwnLibrary,
        // More than any machine has: memory is always short of it.
        variables: &[("MEGAPAGE_HEAP", "thp"), ("MEGAPAGE_SHORT_BELOW", "9223372036854775807")],
        pool: false,
    },
];

/// Variables that any peer heeds: removed from the environment before each run, so that none reaches another.
pub const FOREIGN_VARIABLES: &[&str] = &[
    "LD_PRELOAD",
    "GLIBC_TUNABLES",
    "HUGETLB_MORECORE",
    "HUGETLB_ELFMAP",
    "HUGETLB_SHM",
    "MALLOC_CONF",
    "MALLOC_ARENA_MAX",
    "MALLOC_TOP_PAD_",
    "MIMALLOC_LARGE_OS_PAGES",
    "MIMALLOC_ALLOW_LARGE_OS_PAGES",
    "MIMALLOC_RESERVE_HUGE_OS_PAGES",
    "MEGAPAGE_HEAP",
    "MEGAPAGE_SHORT_BELOW",
];

impl Peer {
    /// The peer of that name.
    pub fn named(name: &str) -> Option<&'static Peer> {
        PEERS.iter().find(|peer| peer.name == name)
    }

    /// Whether it is one of megapage's own.
    pub fn is_ours(&self) -> bool {
        matches!(self.start, Start::OwnLibrary | Start::Run(_))
    }

    /// How it is selected, in the words of a shell.
    pub fn recipe(&self) -> String {
        let mut words: Vec<String> =
            self.variables.iter().map(|(name, value)| format!("{name}={value}")).collect();
        match self.start {
            Start::Plain => {}
            Start::Preload(library) => words.push(format!("LD_PRELOAD={}", library.file)),
            Start::OwnLibrary => words.push("LD_PRELOAD=libmegapage.so".into()),
            Start::Run(arguments) => {
                words.push("megapage run".into());
                words.extend(arguments.iter().map(|argument| argument.to_string()));
                words.push("--".into());
            }
        }
        words.push("PROGRAM".into());
        words.join(" ")
    }
}

impl Library {
    /// Where it is installed; `None` where it is not.
    pub fn find(&self) -> Option<PathBuf> {
        let directories = match self.package {
            Package::Debian(_) => system_libraries(),
            Package::Python(..) => vec![python_libraries()],
        };
        directories.into_iter().map(|directory| directory.join(self.file)).find(|path| path.exists())
    }

    /// The command that installs it.
    pub fn how_to_install(&self) -> String {
        match self.package {
            Package::Debian(name) => format!("apt-get install {name}"),
            Package::Python(name, version) => format!(
                "python3 -m pip install --no-deps --target {} {name}=={version}",
                python_target().display()
            ),
        }
    }
}

/// The directories of shared libraries of Debian and of others.
pub fn system_libraries() -> Vec<PathBuf> {
    let multiarch = format!("/usr/lib/{}-linux-gnu", env::consts::ARCH);
    [multiarch.as_str(), "/usr/lib64", "/usr/lib", "/usr/local/lib"].map(PathBuf::from).into()
}

/// Where Python packages are unpacked to: `$XDG_CACHE_HOME/megapage/peers`, else under `~/.cache`.
pub fn python_target() -> PathBuf {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    cache.unwrap_or_else(env::temp_dir).join("megapage/peers")
}

/// Where the libraries of those packages lie: the layout of the cmeel wheels.
pub fn python_libraries() -> PathBuf {
    python_target().join("cmeel.prefix/lib")
}

/// The version of the library behind `peer`: of the package, as far as it can be determined.
pub fn version(peer: &Peer) -> Option<String> {
    let package = match peer.start {
        Start::Plain => "libc6",
        Start::Preload(library) => match library.package {
            Package::Debian(name) => name,
            Package::Python(name, version) => return Some(format!("{name} {version}")),
        },
        Start::OwnLibrary | Start::Run(_) => return Some(format!("megapage {}", env!("CARGO_PKG_VERSION"))),
    };
    let output = Command::new("dpkg-query").args(["-W", "-f", "${Package} ${Version}", package]).output();
    let text = String::from_utf8(output.ok().filter(|output| output.status.success())?.stdout).ok()?;
    Some(text.trim().to_string()).filter(|version| !version.is_empty())
}

/// The peers of the given names, in the table's order and with the baseline; all where none is named.
pub fn select(names: &[String]) -> Result<Vec<&'static Peer>> {
    if let Some(unknown) = names.iter().find(|name| Peer::named(name).is_none()) {
        let known: Vec<_> = PEERS.iter().map(|peer| peer.name).collect();
        bail!("'{unknown}' is no peer; the peers are {}", known.join(", "));
    }
    let chosen = |peer: &&Peer| {
        names.is_empty() || peer.name == BASELINE || names.iter().any(|name| name == peer.name)
    };
    Ok(PEERS.iter().filter(chosen).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn names_are_unique_and_the_special_ones_are_there() {
        let names: HashSet<_> = PEERS.iter().map(|peer| peer.name).collect();
        assert_eq!(names.len(), PEERS.len());
        for name in [BASELINE, OURS, LIBRARY_ALONE] {
            assert!(Peer::named(name).is_some(), "{name}");
        }
        assert_eq!(PEERS[0].name, BASELINE);
    }

    #[test]
    fn no_peer_leaks_its_variables_into_the_next() {
        for peer in PEERS {
            for (name, _) in peer.variables {
                assert!(FOREIGN_VARIABLES.contains(name), "{name} of {} is not cleared", peer.name);
            }
        }
    }

    #[test]
    fn the_baseline_is_always_selected() {
        let names = |chosen: &[&str]| -> Vec<&str> {
            let chosen: Vec<String> = chosen.iter().map(|name| name.to_string()).collect();
            select(&chosen).unwrap().iter().map(|peer| peer.name).collect()
        };
        assert_eq!(names(&["tcmalloc"]), ["glibc", "tcmalloc"]);
        assert_eq!(names(&[]).len(), PEERS.len());
        let error = select(&["dlmalloc".into()]).unwrap_err().to_string();
        assert!(error.starts_with("'dlmalloc' is no peer; the peers are glibc, "), "{error}");
    }
}
