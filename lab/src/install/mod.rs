//! Installation of experiments' requirements: peers' libraries, servers, compilers.

mod crates;
pub(crate) mod glibc;

use crate::peers::{Peer, Start};
use anyhow::{Context, Result, bail};
use megapage_bench::libraries::{Package, python_target};
use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// Installs the libraries that `peers` lack, by apt-get, pip and cargo. It gives each command to
/// `say` before it runs it.
pub fn install(peers: &[&Peer], say: &mut dyn FnMut(&str)) -> Result<()> {
    let absent = peers.iter().filter_map(|peer| match peer.start {
        Start::Preload(library) if library.find().is_none() => Some(library),
        _ => None,
    });
    let (mut debian, mut python, mut built) = (Vec::new(), Vec::new(), Vec::new());
    for library in absent {
        let (list, name) = match library.package {
            Package::Debian(name) => (&mut debian, name.to_string()),
            Package::Python(name, version) => (&mut python, format!("{name}=={version}")),
            Package::Crate(..) => {
                if !built.contains(&library) {
                    built.push(library);
                }
                continue;
            }
        };
        if !list.contains(&name) {
            list.push(name);
        }
    }
    if !debian.is_empty() {
        self::debian(&debian, say)?;
    }
    if !python.is_empty() {
        let mut command = Command::new("python3");
        command.args(["-m", "pip", "install", "--quiet", "--no-deps", "--upgrade", "--target"]);
        carry_out(command.arg(python_target()).args(python), say)?;
    }
    // Last: if it fails, the others are installed already.
    built.into_iter().try_for_each(|library| crates::build(library, say))
}

/// Installs Debian packages. It gives each command to `say` before it runs it.
pub(crate) fn debian<T: AsRef<std::ffi::OsStr>>(packages: &[T], say: &mut dyn FnMut(&str)) -> Result<()> {
    carry_out(Command::new("apt-get").arg("update"), say)?;
    let mut command = Command::new("apt-get");
    command.args(["install", "--yes", "--no-install-recommends"]).args(packages);
    carry_out(command.env("DEBIAN_FRONTEND", "noninteractive"), say)
}

/// Returns an executable by that name in `PATH` or in one of the directories of a Debian package.
pub(crate) fn find(name: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let usual = ["/usr/bin", "/usr/local/bin"].map(PathBuf::from);
    env::split_paths(&path).chain(usual).map(|directory| directory.join(name)).find(|path| path.is_file())
}

fn carry_out(command: &mut Command, say: &mut dyn FnMut(&str)) -> Result<()> {
    let words: Vec<_> = std::iter::once(command.get_program()).chain(command.get_args()).collect();
    let line = words.iter().map(|word| word.to_string_lossy()).collect::<Vec<_>>().join(" ");
    say(&line);
    let output = command.stdin(Stdio::null()).output().with_context(|| format!("'{line}' did not start"))?;
    if !output.status.success() {
        let said = String::from_utf8_lossy(&output.stderr);
        bail!("'{line}' failed: {}", said.lines().last().unwrap_or("it said nothing"));
    }
    Ok(())
}
