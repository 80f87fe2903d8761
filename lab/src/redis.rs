//! redis-server and its tools, as the benches call them: with a socket in a directory of its own, and saving nothing that
//! it is not asked to save.

use crate::child::sleep;
use crate::install::find;
use anyhow::{Context, Result, bail};
use megapage_kernel::spawn::Signals;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Between two looks for the server's socket, and how many.
const LOOK: Duration = Duration::from_millis(50);
const LOOKS: u32 = 400;

/// Its name.
pub(crate) const SERVER: &str = "redis-server";
/// The server's arguments, without those of [`settle`]; `yes` or `no` follows. It looks at that one where the kernel's
/// setting is `always` alone.
pub(crate) const ARGUMENTS: [&str; 7] = ["--port", "0", "--save", "", "--appendonly", "no", "--disable-thp"];

/// A script that sets keys, numbered from its first argument to its second, to values of as many bytes as its third says.
/// Keys have the names that redis-benchmark gives to random ones.
pub(crate) const FILL: &str = "for i = ARGV[1], ARGV[2] do \
                               redis.call('set', string.format('key:%012d', i), string.rep('x', ARGV[3])) end";

/// The packages of the server and its tools where one of them is absent.
pub(crate) fn lacks() -> Vec<&'static str> {
    let all = [SERVER, "redis-cli", "redis-benchmark"];
    if all.iter().all(|name| find(name).is_some()) { Vec::new() } else { vec![SERVER, "redis-tools"] }
}

/// A directory for a server.
pub(crate) fn directory() -> Result<TempDir> {
    tempfile::Builder::new().prefix("megapage-bench").tempdir().context("a directory")
}

/// The server's socket in its directory.
pub(crate) fn socket(directory: &Path) -> PathBuf {
    directory.join("redis.sock")
}

/// A command of redis' own.
pub(crate) fn command(name: &str) -> Result<Command> {
    Ok(Command::new(find(name).with_context(|| name.to_string())?))
}

/// Adds the arguments that have a server work in `directory`.
pub(crate) fn settle(command: &mut Command, directory: &Path) {
    command.arg("--unixsocket").arg(socket(directory)).arg("--dir").arg(directory);
    command.stdin(Stdio::null()).stdout(Stdio::null());
}

/// Waits until the server in `directory` takes requests; `must_run` fails where it has ended.
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

/// A call of one of its tools for the server in `directory`.
pub(crate) fn client(name: &str, directory: &Path) -> Result<Command> {
    let mut command = command(name)?;
    command.arg("-s").arg(socket(directory));
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    Ok(command)
}
