//! The Java virtual machine (HotSpot): which one it is, what its options say, what it takes from the pools, what stands
//! in the way of that, and where its heap lies.
//!
//! The choice of its switches is in [`crate::runtimes`]; everything here but [`Java::of`], [`Java::installed`] and
//! [`Java::read_argument_files`] is pure.

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

/// A Java installation, as the file `release` in its directory says; nothing is started to find out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Java {
    /// The feature release: 8, 11, 17; `None` where no file says.
    pub version: Option<u32>,
    /// The virtual machine where it is not HotSpot, whose switches these are.
    pub other_vm: Option<String>,
    /// The argument files (`@FILE`) of the command line, by name.
    pub argument_files: BTreeMap<String, String>,
}

impl Java {
    /// Of an executable such as `/usr/bin/java`, links followed.
    pub fn of(executable: &Path) -> Java {
        let Ok(path) = std::fs::canonicalize(executable) else { return Java::default() };
        // JDK/bin/java, and JDK/jre/bin/java of Java 8.
        let text = path.ancestors().skip(2).take(2).find_map(|home| text_of(&home.join("release")));
        text.map_or_else(Java::default, |text| Java::of_release(&text))
    }

    /// The one that a script is most likely to start: of JAVA_HOME, else the first in PATH.
    pub fn installed(environment: &BTreeMap<String, String>) -> Option<Java> {
        let home = environment.get("JAVA_HOME").map(|home| Path::new(home).join("bin"));
        let path = environment.get("PATH").map(String::as_str).unwrap_or("/bin:/usr/bin");
        let directories = home.into_iter().chain(std::env::split_paths(path));
        directories.map(|it| it.join("java")).find(|file| file.is_file()).map(|file| Java::of(&file))
    }

    /// From the text of a file `release`: lines such as `JAVA_VERSION="17.0.15"`.
    pub fn of_release(text: &str) -> Java {
        let value = |name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix('='))?;
            Some(line.trim().trim_matches('"'))
        };
        // Eclipse's builds name it; those that do not are HotSpot's.
        let other_vm = value("JVM_VARIANT").filter(|variant| !variant.eq_ignore_ascii_case("hotspot"));
        Java {
            version: value("JAVA_VERSION").and_then(feature),
            other_vm: other_vm.map(String::from),
            argument_files: BTreeMap::new(),
        }
    }

    /// Reads the argument files that `arguments` name; one that cannot be read is the JVM's to complain of.
    pub fn read_argument_files(&mut self, arguments: &[String]) {
        let names = arguments.iter().filter_map(|argument| argument.strip_prefix('@'));
        self.argument_files =
            names.filter_map(|name| Some((name.to_string(), text_of(Path::new(name))?))).collect();
    }

    /// Whether this is at least that release. One that is not known counts as a present one.
    pub fn is_at_least(&self, version: u32) -> bool {
        self.version.is_none_or(|own| own >= version)
    }
}

/// The text of a regular file. A pipe (`java @<(...)`) is not read: what is in it would be gone for
/// the program.
fn text_of(path: &Path) -> Option<String> {
    String::from_utf8(read_regular(path, LONGEST).ok()?).ok()
}

/// The feature release of a version: 8 of `1.8.0_292`, 17 of `17.0.15`, 25 of `25-ea`.
fn feature(version: &str) -> Option<u32> {
    let mut numbers = version.split(['.', '-', '_', '+']).map(str::parse::<u32>);
    match numbers.next()?.ok()? {
        1 => numbers.next()?.ok(),
        number => Some(number),
    }
}

/// How a run means to bring a JVM onto huge pages.
#[derive(Clone, Debug, PartialEq)]
pub struct JavaPlan {
    /// The installation.
    pub java: Java,
    /// What it takes.
    pub need: Need,
    /// The pool that its heap comes from; `None`: transparent huge pages, or what its own arguments say.
    pub page: Option<PageSize>,
    /// What stands in the way of pages of the pool.
    pub obstacles: Vec<Obstacle>,
}

impl JavaPlan {
    /// The largest that its heap can become.
    pub fn max_heap(&self) -> Bytes {
        self.need.heap
    }
}

#[cfg(test)]
mod tests;
