//! The peers at their best: every way to give a program its pages that the benches compare. Each
//! has its settings, the reason for them and their source. A test compares the manual's tables with
//! them.

mod kernel;
#[cfg(test)]
mod manual_tests;
mod table;

pub use kernel::{ALWAYS, HARD, KERNEL_SETTINGS, KERNEL_SOURCE, KernelSetting, NEVER, TUNED, is_tuned};
pub use table::{BASELINE, FOREIGN_VARIABLES, GIGANTIC, LIBRARY_ALONE, OURS, PEERS, SHORT};

use anyhow::{Result, bail};
use megapage_bench::libraries::{Library, Package};
use megapage_units::{Bytes, PageSize};
use std::path::Path;
use std::process::Command;

/// The way in which a peer gets hold of the program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    /// Without any change.
    Plain,
    /// With a library preloaded (ld.so(8), LD_PRELOAD).
    Preload(Library),
    /// With megapage's own library preloaded and nothing else done.
    OwnLibrary,
    /// Through `megapage run` with these arguments.
    Run(&'static [&'static str]),
}

/// One configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    /// Its name on the command line and in every table.
    pub name: &'static str,
    /// The way in which the program is started.
    pub start: Start,
    /// Environment variables that select the backing.
    pub variables: &'static [(&'static str, &'static str)],
    /// The hugetlb pages that it can use, of which a pool is reserved for its runs; `None` if it
    /// uses none.
    pub pool: Option<PageSize>,
    /// The reason for its settings.
    pub why: &'static str,
    /// The description of the settings.
    pub source: &'static str,
}

/// Placeholder for the mount of 2 MiB pages in the value of a variable.
const HUGETLBFS: &str = "{hugetlbfs}";

impl Peer {
    /// Returns the peer of that name.
    pub fn named(name: &str) -> Option<&'static Peer> {
        PEERS.iter().find(|peer| peer.name == name)
    }

    /// Returns true if it is one of megapage's own.
    pub fn is_ours(&self) -> bool {
        matches!(self.start, Start::OwnLibrary | Start::Run(_))
    }

    /// Returns true if its pool has 1 GiB pages.
    pub fn is_gigantic(&self) -> bool {
        self.pool == Some(PageSize::HUGE_1G)
    }

    /// Returns true if it needs a mounted hugetlbfs.
    pub fn needs_hugetlbfs(&self) -> bool {
        self.variables.iter().any(|(_, value)| value.contains(HUGETLBFS))
    }

    /// Returns its variables for a workload that takes `memory`, with the bench's mount at
    /// `hugetlbfs`.
    pub fn environment(&self, memory: Bytes, hugetlbfs: Option<&Path>) -> Vec<(&'static str, String)> {
        let mount = hugetlbfs.map_or_else(String::new, |path| path.display().to_string());
        let value = |value: &str| {
            let value = value.replace("{gib}", &memory.0.div_ceil(1 << 30).to_string());
            value.replace("{kib}", &memory.0.div_ceil(1 << 10).to_string()).replace(HUGETLBFS, &mount)
        };
        self.variables.iter().map(|(name, text)| (*name, value(text))).collect()
    }

    /// Returns its selection, in the words of a shell.
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

/// Returns the version of the library behind `peer`: that of the package, as far as it can be
/// determined.
pub fn version(peer: &Peer) -> Option<String> {
    let package = match peer.start {
        Start::Plain => "libc6",
        Start::Preload(library) => match library.package {
            Package::Debian(name) => name,
            Package::Python(name, version) | Package::Crate(name, version) => {
                return Some(format!("{name} {version}"));
            }
        },
        Start::OwnLibrary | Start::Run(_) => return Some(format!("megapage {}", env!("CARGO_PKG_VERSION"))),
    };
    let output = Command::new("dpkg-query").args(["-W", "-f", "${Package} ${Version}", package]).output();
    let text = String::from_utf8(output.ok().filter(|output| output.status.success())?.stdout).ok()?;
    Some(text.trim().to_string()).filter(|version| !version.is_empty())
}

/// Returns the peers of the given names, in the table's order and with the baseline; all if none is
/// named.
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
        for name in [BASELINE, OURS, GIGANTIC, LIBRARY_ALONE, SHORT] {
            assert!(Peer::named(name).is_some(), "{name}");
        }
        assert_eq!(PEERS[0].name, BASELINE);
        let gigantic: Vec<&str> =
            PEERS.iter().filter(|peer| peer.is_gigantic()).map(|peer| peer.name).collect();
        assert_eq!(gigantic, [GIGANTIC]);
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
    fn settings_that_depend_on_the_work_are_filled_in() {
        let of = |name: &str, mount: Option<&Path>| {
            Peer::named(name).unwrap().environment(Bytes(3 * (1 << 30) + 1), mount)
        };
        assert_eq!(of("mimalloc3-gigantic", None)[0].1, "4");
        assert_eq!(of("mimalloc3-reserved", None)[1].1, "3145729KiB");
        assert_eq!(of("tcmalloc-memfs", Some(Path::new("/mnt/x")))[0].1, "/mnt/x/tcmalloc.");
        let needs: Vec<&str> =
            PEERS.iter().filter(|peer| peer.needs_hugetlbfs()).map(|peer| peer.name).collect();
        assert_eq!(needs, ["tcmalloc-memfs"]);
        for peer in PEERS {
            let values = peer.environment(Bytes::mib(1), Some(Path::new("/x")));
            assert!(values.iter().all(|(_, value)| !value.contains('{')), "{}: {values:?}", peer.name);
            assert!(!peer.why.is_empty() && !peer.source.is_empty(), "{}", peer.name);
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
