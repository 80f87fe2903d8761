//! Where the peers' libraries lie, and how those that are absent are installed.

use crate::peers::{PEERS, Package, Peer, Start};
use anyhow::{Context, Result, bail};
use std::env;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The directories of shared libraries of Debian and of others.
pub(crate) fn system_libraries() -> Vec<PathBuf> {
    let multiarch = format!("/usr/lib/{}-linux-gnu", env::consts::ARCH);
    [multiarch.as_str(), "/usr/lib64", "/usr/lib", "/usr/local/lib"].map(PathBuf::from).into()
}

/// Where Python packages are unpacked to: `$XDG_CACHE_HOME/megapage/peers`, else under `~/.cache`.
fn python_target() -> PathBuf {
    let set = |name| env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let cache = set("XDG_CACHE_HOME").or_else(|| set("HOME").map(|home| home.join(".cache")));
    cache.unwrap_or_else(env::temp_dir).join("megapage/peers")
}

/// Where the libraries of those packages lie: the layout of the cmeel wheels.
pub(crate) fn python_libraries() -> PathBuf {
    python_target().join("cmeel.prefix/lib")
}

/// Installs what `peers` lack, by apt-get and pip. Each command is given to `say` before it runs.
pub fn install(peers: &[&Peer], say: &mut dyn FnMut(&str)) -> Result<()> {
    let absent = peers.iter().filter_map(|peer| match peer.start {
        Start::Preload(library) if library.find().is_none() => Some(library.package),
        _ => None,
    });
    let (mut debian, mut python) = (Vec::new(), Vec::new());
    for package in absent {
        let (list, name) = match package {
            Package::Debian(name) => (&mut debian, name.to_string()),
            Package::Python(name, version) => (&mut python, format!("{name}=={version}")),
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
    Ok(())
}

/// Installs Debian packages. Each command is given to `say` before it runs.
pub(crate) fn debian<T: AsRef<std::ffi::OsStr>>(packages: &[T], say: &mut dyn FnMut(&str)) -> Result<()> {
    carry_out(Command::new("apt-get").arg("update"), say)?;
    let mut command = Command::new("apt-get");
    command.args(["install", "--yes", "--no-install-recommends"]).args(packages);
    carry_out(command.env("DEBIAN_FRONTEND", "noninteractive"), say)
}

/// An executable by that name in `PATH` or in one of the directories of a Debian package.
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

/// The version of the library behind `peer`: of the package, as far as it can be told.
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
        names.is_empty() || peer.name == crate::peers::BASELINE || names.iter().any(|name| name == peer.name)
    };
    Ok(PEERS.iter().filter(chosen).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

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
