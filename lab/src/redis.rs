//! redis-server and its tools, as the benches call them: with a socket in a separate directory, and
//! without saving except on request.

use crate::child::sleep;
use crate::install::find;
use anyhow::{Context, Result, bail};
use megapage_kernel::spawn::Signals;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Time between two looks for the server's socket, and their number.
const LOOK: Duration = Duration::from_millis(50);
const LOOKS: u32 = 400;

/// Name of the server's program.
pub(crate) const SERVER: &str = "redis-server";
/// The server's arguments, without those of [`settle`]; `yes` or `no` follows. It heeds the last
/// one only if the kernel's setting is `always`.
pub(crate) const ARGUMENTS: [&str; 7] = ["--port", "0", "--save", "", "--appendonly", "no", "--disable-thp"];

/// Script that sets keys, numbered from its first argument to its second. Its third is the bytes of
/// each value. Keys have the names that redis-benchmark gives to random ones.
pub(crate) const FILL: &str = "for i = ARGV[1], ARGV[2] do \
                               redis.call('set', string.format('key:%012d', i), string.rep('x', ARGV[3])) end";

/// Returns the packages of the server and its tools if one of these is absent.
pub(crate) fn lacks() -> Vec<&'static str> {
    let all = [SERVER, "redis-cli", "redis-benchmark"];
    if all.iter().all(|name| find(name).is_some()) { Vec::new() } else { vec![SERVER, "redis-tools"] }
}

/// Returns a directory for a server.
pub(crate) fn directory() -> Result<TempDir> {
    tempfile::Builder::new().prefix("megapage-bench").tempdir().context("a directory")
}

/// Returns the server's socket in its directory.
pub(crate) fn socket(directory: &Path) -> PathBuf {
    directory.join("redis.sock")
}

/// Returns a command of redis' own.
pub(crate) fn command(name: &str) -> Result<Command> {
    Ok(Command::new(find(name).with_context(|| name.to_string())?))
}

/// Adds the arguments that let a server work in `directory`.
pub(crate) fn settle(command: &mut Command, directory: &Path) {
    command.arg("--unixsocket").arg(socket(directory)).arg("--dir").arg(directory);
    command.stdin(Stdio::null()).stdout(Stdio::null());
}

/// Waits until the server in `directory` takes requests; `must_run` fails if it has ended.
pub(crate) fn wait(
    directory: &Path,
    signals: &Signals,
    mut must_run: impl FnMut() -> Result<()>,
) -> Result<()> {
    for _ in 0..LOOKS {
        if UnixStream::connect(socket(directory)).is_ok() {
            return Ok(());
        }
        must_run()?;
        sleep(signals, LOOK)?;
    }
    bail!("redis-server does not listen")
}

/// Returns a call of one of its tools for the server in `directory`.
pub(crate) fn client(name: &str, directory: &Path) -> Result<Command> {
    let mut command = command(name)?;
    command.arg("-s").arg(socket(directory));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command)
}
