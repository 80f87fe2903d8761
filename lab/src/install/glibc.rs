//! A newer glibc than the system's, from another suite of Debian's. It is unpacked into a directory
//! of the user's cache, with separate package lists, so that neither the system's packages nor its
//! suites change.

use super::carry_out;
use anyhow::{Context, Result, bail};
use megapage_bench::libraries::python_target;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Suites in which new releases come first.
const SUITES: [&str; 2] = ["sid", "experimental"];
const KEYS: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";

/// Returns the directory of the unpacked library.
pub(crate) fn directory() -> PathBuf {
    python_target().join("glibc")
}

/// Unpacks libc6 there, from the first suite whose unpacked files `suits` accepts. Fails if the
/// system has no apt-get, no suite has the package, or none suits. It gives each command to `say`
/// before it runs it.
pub(crate) fn install(suits: &dyn Fn(&Path) -> Result<()>, say: &mut dyn FnMut(&str)) -> Result<()> {
    let to = directory();
    let above = python_target();
    fs::create_dir_all(&above).with_context(|| above.display().to_string())?;
    let mirror = mirror()?;
    let mut why = None;
    for suite in SUITES {
        // Beside its place, so that it gets there at once or not at all.
        let state = tempfile::tempdir_in(&above).context("a directory for apt's lists")?;
        let unpacked = state.path().join("unpacked");
        match unpack(&mirror, suite, state.path(), &unpacked, say).and_then(|()| suits(&unpacked)) {
            Ok(()) => {
                if to.exists() {
                    fs::remove_dir_all(&to).with_context(|| to.display().to_string())?;
                }
                fs::rename(&unpacked, &to).with_context(|| to.display().to_string())?;
                return Ok(());
            }
            Err(error) => why = Some(error.context(format!("libc6 of {suite}"))),
        }
    }
    Err(why.context("no suite is known")?)
}

/// Returns the mirror that the system's own packages come from.
fn mirror() -> Result<String> {
    let mut command = Command::new("apt-get");
    command.args(["indextargets", "--format", "$(REPO_URI)", "Created-By: Packages"]).stdin(Stdio::null());
    let printed = command.output().context("apt-get did not start")?.stdout;
    let printed = String::from_utf8_lossy(&printed);
    let mut lines = printed.lines().map(|line| line.trim_end_matches('/'));
    match lines.find(|line| line.ends_with("/debian")) {
        Some(mirror) => Ok(mirror.to_string()),
        None => bail!("apt-get knows no mirror of Debian's"),
    }
}

fn unpack(mirror: &str, suite: &str, state: &Path, to: &Path, say: &mut dyn FnMut(&str)) -> Result<()> {
    for directory in ["lists/partial", "cache/archives/partial"] {
        fs::create_dir_all(state.join(directory)).context("a directory for apt")?;
    }
    let (sources, status, settings) =
        (state.join("sources.list"), state.join("status"), state.join("apt.conf"));
    fs::write(&sources, format!("deb [signed-by={KEYS}] {mirror} {suite} main\n"))
        .context("apt's sources")?;
    fs::write(&status, "").context("apt's status")?;
    let text = format!(
        "Dir::Etc::sourcelist \"{}\";\nDir::Etc::sourceparts \"/dev/null\";\nDir::State \"{}\";\n\
         Dir::State::status \"{}\";\nDir::Cache \"{}\";\nAPT::Sandbox::User \"\";\n\
         Dir::Etc::preferences \"/dev/null\";\nDir::Etc::preferencesparts \"/dev/null\";\nAPT::Default-Release \"\";\n\
         #clear APT::Update::Post-Invoke;\n#clear APT::Update::Post-Invoke-Success;\n",
        sources.display(),
        state.display(),
        status.display(),
        state.join("cache").display()
    );
    fs::write(&settings, text).context("apt's settings")?;
    let apt = || {
        let mut command = Command::new("apt-get");
        command.arg("-c").arg(&settings).current_dir(state);
        command
    };
    carry_out(apt().args(["update", "-q"]), say)?;
    carry_out(apt().args(["download", "-q", "libc6"]), say)?;
    let package = fs::read_dir(state).context("apt's directory")?.flatten().map(|entry| entry.path());
    let mut packages = package.filter(|path| path.extension().is_some_and(|extension| extension == "deb"));
    let package = packages.next().context("apt-get downloaded no package")?;
    carry_out(Command::new("dpkg").arg("-x").arg(&package).arg(to), say)
}
