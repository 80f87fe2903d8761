//! Reads the log of a service by journalctl(1).

use crate::error::{SystemdError, refused};
use crate::name::UnitName;
use std::io::Read;
use std::process::{Command, Stdio};

/// Returns the first lines of a service's log since the machine's boot, at most `most` bytes of
/// them.
pub fn journal(unit: &UnitName, most: u64) -> Result<String, SystemdError> {
    let arguments = ["--boot", "--quiet", "--no-pager", "--output=cat", &format!("--unit={}", unit.as_str())];
    let command = format!("journalctl {}", arguments.join(" "));
    let failed = |what: String| refused(&command, what);
    let mut child = Command::new("journalctl")
        .args(arguments)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .map_err(|error| failed(error.to_string()))?;
    let mut bytes = Vec::new();
    let read = child.stdout.take().map_or(Ok(0), |out| out.take(most).read_to_end(&mut bytes));
    // Nothing reads its output any more: if it still writes, it ends by SIGPIPE, which is no
    // failure.
    let output = child.wait_with_output().map_err(|error| failed(error.to_string()))?;
    read.map_err(|error| failed(error.to_string()))?;
    let said = String::from_utf8_lossy(&output.stderr);
    match (output.status.code(), said.lines().next()) {
        (Some(0) | None, _) if !bytes.is_empty() => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        (_, Some(line)) => Err(failed(line.trim().into())),
        (Some(0) | None, None) => Err(SystemdError::Refused(format!(
            "the journal shows nothing of {unit} since the machine has started; root, and the group systemd-journal, see all of it"
        ))),
        (Some(_), None) => Err(failed("failed without a word".into())),
    }
}
