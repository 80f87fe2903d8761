//! Laying an executable or library out anew for pages of 2 MiB, without linking it again.
//!
//! Addresses never change, since the code holds them. What can change is where in the file a segment lies, what
//! alignment the header asks for, and how far a segment's last page goes where nothing follows it.

mod plan;
mod write;

pub use plan::{Copy, Patch, Plan, plan};

use crate::{RemapError, layout, read_binary};
use megapage_kernel::umask;
use megapage_units::shown::shell_path;
use serde::Serialize;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What became of one file.
#[derive(Clone, Debug, Serialize)]
pub struct Outcome {
    /// The file that was read.
    #[serde(serialize_with = "megapage_kernel::json_path::escaped")]
    pub file: PathBuf,
    /// The file that was written.
    #[serde(serialize_with = "megapage_kernel::json_path::escaped")]
    pub out: PathBuf,
    /// Whether this is what would be done.
    pub dry_run: bool,
    /// Bytes of it that priming could have on huge pages before.
    pub before_bytes: u64,
    /// And in the new file.
    pub after_bytes: u64,
    /// Segments whose place in the file changed.
    pub moved_segments: usize,
    /// Bytes by which segments were made longer, up to the end of their last block of 2 MiB.
    pub extended_bytes: u64,
    /// Length of the file before.
    pub size_before: u64,
    /// Length of the new file; holes in it take no room on the disk.
    pub size_after: u64,
    /// What of the file's metadata was not taken over.
    pub notes: Vec<String>,
    /// The same, as shell lines.
    pub commands: Vec<String>,
}

impl Outcome {
    /// Whether the layout was right already, so that the new file is a plain copy.
    pub fn is_copy(&self) -> bool {
        self.before_bytes == self.after_bytes
    }
}

/// Writes `path`, laid out for 2 MiB, to `out`, which is replaced only when the whole file is written and was read
/// back. `Unfit` where that is not possible, with the reason.
pub fn align(path: &Path, out: &Path, dry_run: bool) -> Result<Outcome, RemapError> {
    let binary = read_binary(path)?;
    let metadata = fs::metadata(path).map_err(RemapError::io(path))?;
    if fs::metadata(out).is_ok_and(|o| (o.dev(), o.ino()) == (metadata.dev(), metadata.ino())) {
        return Err(RemapError::unfit(
            out,
            "a program may be running from it: write to another file, then rename",
        ));
    }
    if out.is_dir() {
        return Err(RemapError::unfit(out, "is a directory: name the file to write"));
    }
    let plan = plan(&binary).map_err(|what| RemapError::unfit(path, what))?;
    write::refuse_what_no_header_describes(path, &plan)?;
    // Of another user's file that all users may write to no such one is made.
    let mode = metadata.permissions().mode() & 0o777 & !umask();
    let mut notes = Vec::new();
    if metadata.mode() & 0o6000 != 0 {
        notes.push("the set-user-ID and set-group-ID bits were left out".to_string());
    }
    let mut outcome = Outcome {
        file: path.to_path_buf(),
        out: out.to_path_buf(),
        dry_run,
        before_bytes: plan.before,
        after_bytes: plan.after,
        moved_segments: plan.moved,
        extended_bytes: plan.extended,
        size_before: binary.size,
        size_after: plan.size,
        notes,
        commands: commands(path, out, &plan, mode),
    };
    if !dry_run {
        write::write(path, out, &binary, &plan, mode)?;
        let written = layout::total(&layout::primable(&read_binary(out)?));
        // What was obtained is what the new file says.
        outcome.after_bytes = written;
    }
    Ok(outcome)
}

fn commands(path: &Path, out: &Path, plan: &Plan, mode: u32) -> Vec<String> {
    let (from, to) = (shell_path(path), shell_path(out));
    let mut lines = vec![format!("truncate -s 0 {to}"), format!("truncate -s {} {to}", plan.size)];
    for copy in &plan.copies {
        lines.push(format!(
            "dd if={from} of={to} bs=1M iflag=skip_bytes,count_bytes oflag=seek_bytes skip={} count={} seek={} \
             conv=notrunc,sparse status=none",
            copy.from, copy.length, copy.to
        ));
    }
    for patch in &plan.patches {
        let bytes: String = patch.value.to_le_bytes().iter().map(|byte| format!("\\{byte:03o}")).collect();
        lines.push(format!("printf '{bytes}' | dd of={to} bs=1 seek={} conv=notrunc status=none", patch.at));
    }
    lines.push(format!("chmod {mode:o} {to}"));
    lines
}
