//! The Java virtual machine (HotSpot): its version, its memory options, its need of pool pages, the
//! obstacles to that, and the place of its heap.
//!
//! The choice of its switches is in [`crate::runtimes`]. All functions here are pure except
//! [`Java::of`], [`Java::installed`] and [`Java::read_argument_files`].

pub mod heap;
pub mod need;
pub mod obstacles;
pub mod options;

use crate::jvm::need::Need;
use crate::jvm::obstacles::Obstacle;
use megapage_kernel::trusted::read_regular;
use megapage_units::{Bytes, PageSize};
use std::collections::BTreeMap;
use std::path::Path;

/// The longest file of a JVM that is read, in bytes.
const LONGEST: u64 = 1 << 20;

/// A Java installation, from the file `release` in its directory. Nothing is started for that.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Java {
    /// The feature release, such as 8, 11 or 17; `None` if no file names it.
    pub version: Option<u32>,
    /// The virtual machine if it is not HotSpot, to which these switches belong.
    pub other_vm: Option<String>,
    /// The argument files (`@FILE`) of the command line, by name.
    pub argument_files: BTreeMap<String, String>,
}

impl Java {
    /// Returns the installation of an executable such as `/usr/bin/java`, after following links.
    pub fn of(executable: &Path) -> Java {
        let Ok(path) = std::fs::canonicalize(executable) else { return Java::default() };
        // JDK/bin/java, and JDK/jre/bin/java in Java 8.
        let text = path.ancestors().skip(2).take(2).find_map(|home| text_of(&home.join("release")));
        text.map_or_else(Java::default, |text| Java::of_release(&text))
    }

    /// Returns the one that a script most likely starts: that of JAVA_HOME, else the first in PATH.
    pub fn installed(environment: &BTreeMap<String, String>) -> Option<Java> {
        let home = environment.get("JAVA_HOME").map(|home| Path::new(home).join("bin"));
        let path = environment.get("PATH").map(String::as_str).unwrap_or("/bin:/usr/bin");
        let directories = home.into_iter().chain(std::env::split_paths(path));
        directories.map(|it| it.join("java")).find(|file| file.is_file()).map(|file| Java::of(&file))
    }

    /// Reads the text of a file `release`: lines such as `JAVA_VERSION="17.0.15"`.
    pub fn of_release(text: &str) -> Java {
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
            Some(line.trim().trim_matches('"'))
        };
        // Eclipse's builds name the virtual machine; builds that do not are HotSpot's.
        let other_vm = value("JVM_VARIANT").filter(|variant| !variant.eq_ignore_ascii_case("hotspot"));
        Java {
            version: value("JAVA_VERSION").and_then(feature),
            other_vm: other_vm.map(String::from),
            argument_files: BTreeMap::new(),
        }
    }

    /// Reads the argument files that `arguments` name. Skips unreadable ones: the JVM reports them
    /// itself.
    pub fn read_argument_files(&mut self, arguments: &[String]) {
        let names = arguments.iter().filter_map(|argument| argument.strip_prefix('@'));
        self.argument_files =
            names.filter_map(|name| Some((name.to_string(), text_of(Path::new(name))?))).collect();
    }

    /// Returns true if this is at least that release. An unknown release counts as a recent one.
    pub fn is_at_least(&self, version: u32) -> bool {
        self.version.is_none_or(|own| own >= version)
    }
}

/// Returns the text of a regular file. A pipe (`java @<(...)`) is not read: the program could not
/// read its content any more.
fn text_of(path: &Path) -> Option<String> {
    String::from_utf8(read_regular(path, LONGEST).ok()?).ok()
}

/// Returns the feature release of a version: 8 for `1.8.0_292`, 17 for `17.0.15`, 25 for `25-ea`.
fn feature(version: &str) -> Option<u32> {
    let mut numbers = version.split(['.', '-', '_', '+']).map(str::parse::<u32>);
    match numbers.next()?.ok()? {
        1 => numbers.next()?.ok(),
        number => Some(number),
    }
}

/// The plan of a run for a JVM on huge pages.
#[derive(Clone, Debug, PartialEq)]
pub struct JavaPlan {
    /// The installation.
    pub java: Java,
    /// Its need of pool pages.
    pub need: Need,
    /// The pool for its heap; `None`: transparent huge pages, or what the JVM's arguments choose.
    pub page: Option<PageSize>,
    /// Obstacles to pages of the pool.
    pub obstacles: Vec<Obstacle>,
}

impl JavaPlan {
    /// Returns the largest size that its heap can reach.
    pub fn max_heap(&self) -> Bytes {
        self.need.heap
    }
}

#[cfg(test)]
mod tests;
