//! Allocators of others that a program is run with: which file, where it lies, and the command that installs it.

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
    /// The sources in a crate of crates.io at this version, built as a library.
    Crate(&'static str, &'static str),
}

impl Library {
    /// Where it is installed; `None` where it is not.
    pub fn find(&self) -> Option<PathBuf> {
        let directories = match self.package {
            Package::Debian(_) => system_libraries(),
            Package::Python(..) => vec![python_libraries()],
            Package::Crate(..) => vec![crate_libraries()],
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
            Package::Crate(name, version) => {
                format!("'megapage-lab install' in a source tree builds it from {name} {version}")
            }
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

/// Where what is built from crates lies.
pub fn crate_libraries() -> PathBuf {
    python_target().join("built")
}
