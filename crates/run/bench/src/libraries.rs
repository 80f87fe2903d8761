//! Allocators from other projects: file, place, and the command that installs them.

use std::env;
use std::path::PathBuf;

/// mimalloc 3.
pub const MIMALLOC_3: Library =
    Library { file: "libmimalloc.so.3", package: Package::Python("cmeel-mimalloc", "3.4.3") };
/// jemalloc 5.
pub const JEMALLOC: Library = Library { file: "libjemalloc.so.2", package: Package::Debian("libjemalloc2") };
/// gperftools' tcmalloc.
pub const TCMALLOC: Library =
    Library { file: "libtcmalloc_minimal.so.4", package: Package::Debian("libtcmalloc-minimal4") };

/// A shared library that is not part of megapage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Library {
    /// File name, with the version that programs link to.
    pub file: &'static str,
    /// Its origin.
    pub package: Package,
}

/// The origin of a library.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Package {
    /// A Debian package.
    Debian(&'static str),
    /// A package of the Python index at this version; only its library is used.
    Python(&'static str, &'static str),
    /// The sources in a crate of crates.io at this version, built as a library.
    Crate(&'static str, &'static str),
}

impl Library {
    /// Returns its installed file; `None` if there is none.
    pub fn find(&self) -> Option<PathBuf> {
        let directories = match self.package {
            Package::Debian(_) => system_libraries(),
            Package::Python(..) => vec![python_libraries()],
            Package::Crate(..) => vec![crate_libraries()],
        };
        directories.into_iter().map(|directory| directory.join(self.file)).find(|path| path.exists())
    }

    /// Returns the command that installs it.
    pub fn how_to_install(&self) -> String {
        match self.package {
            Package::Debian(name) => format!("apt-get install {name}"),
            Package::Python(name, version) => format!(
                "python3 -m pip install --no-deps --target {} {name}=={version}",
                python_target().display()
            ),
            Package::Crate(name, version) => {
                format!("'megapage-lab install' in a source tree builds it from {name} {version}")
            }
        }
    }
}

/// Returns the directories of shared libraries, on Debian and on other systems.
pub fn system_libraries() -> Vec<PathBuf> {
    let multiarch = format!("/usr/lib/{}-linux-gnu", env::consts::ARCH);
    [multiarch.as_str(), "/usr/lib64", "/usr/lib", "/usr/local/lib"].map(PathBuf::from).into()
}

/// Returns the directory of unpacked Python packages: `$XDG_CACHE_HOME/megapage/peers`, else
/// one under `~/.cache`.
pub fn python_target() -> PathBuf {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    cache.unwrap_or_else(env::temp_dir).join("megapage/peers")
}

/// Returns the directory of the Python packages' libraries, as cmeel wheels lay it out.
pub fn python_libraries() -> PathBuf {
    python_target().join("cmeel.prefix/lib")
}

/// Returns the directory of libraries that are built from crates.
pub fn crate_libraries() -> PathBuf {
    python_target().join("built")
}
