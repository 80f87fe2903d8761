//! Writing a plan, and reading back what was written.

use super::Plan;
use crate::{Binary, RemapError, layout, read_binary};
use megapage_kernel::trusted::open_regular;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// How much is read at a time.
const CHUNK: usize = 1 << 20;
/// Runs of zeros of this length become holes.
const HOLE: usize = 4 << 10;

/// Bytes that nothing describes, such as an archive at the end of the file, may be looked for by their offset: a file
/// with such is not laid out anew.
pub(super) fn refuse_what_no_header_describes(path: &Path, plan: &Plan) -> Result<(), RemapError> {
    let file = open_regular(path).map_err(RemapError::io(path))?;
    let size = file.metadata().map_err(RemapError::io(path))?.len();
    let mut buffer = vec![0; CHUNK];
    for (start, end) in plan.left_out(size) {
        let mut at = start;
        while at < end {
            let part = &mut buffer[..CHUNK.min((end - at) as usize)];
            file.read_exact_at(part, at).map_err(RemapError::io(path))?;
            if let Some(place) = part.iter().position(|&byte| byte != 0) {
                return Err(RemapError::unfit(
                    path,
                    format!(
                        "it holds bytes that no header describes (from offset {}): the program may look for them \
                         there, so nothing can be moved; link it with {}",
                        at + place as u64,
                        layout::linker_flags(None).flags
                    ),
                ));
            }
            at += part.len() as u64;
        }
    }
    Ok(())
}

/// Writes the new file beside `out`, reads it back, and renames it. Nothing is left behind on failure.
pub(super) fn write(
    path: &Path,
    out: &Path,
    binary: &Binary,
    plan: &Plan,
    mode: u32,
) -> Result<(), RemapError> {
    let name = out.file_name().ok_or_else(|| RemapError::unfit(out, "is no file name"))?;
    let mut temporary = name.to_os_string();
    temporary.push(format!(".{}.tmp", std::process::id()));
    let temporary = Temporary(out.with_file_name(temporary));
    let old = open_regular(path).map_err(RemapError::io(path))?;
    let mut options = OpenOptions::new();
    let options = options.read(true).write(true).create_new(true).mode(0o600);
    let new = options.open(&temporary.0).map_err(RemapError::io(out))?;
    fill(&old, &new, plan).map_err(RemapError::io(out))?;
    verify(&old, &new, binary, plan, &temporary.0)
        .map_err(RemapError::io(out))?
        .map_err(|what| RemapError::unfit(out, what))?;
    new.set_permissions(fs::Permissions::from_mode(mode)).map_err(RemapError::io(out))?;
    new.sync_all().map_err(RemapError::io(out))?;
    fs::rename(&temporary.0, out).map_err(RemapError::io(out))?;
    std::mem::forget(temporary);
    Ok(())
}

/// A file that is removed again unless it was renamed.
struct Temporary(PathBuf);

impl Drop for Temporary {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn fill(old: &File, new: &File, plan: &Plan) -> io::Result<()> {
    new.set_len(plan.size)?;
    let mut buffer = vec![0; CHUNK];
    for copy in &plan.copies {
        let mut done = 0;
        while done < copy.length {
            let part = &mut buffer[..CHUNK.min((copy.length - done) as usize)];
            old.read_exact_at(part, copy.from + done)?;
            for (index, piece) in part.chunks(HOLE).enumerate() {
                if piece.iter().any(|&byte| byte != 0) {
                    new.write_all_at(piece, copy.to + done + (index * HOLE) as u64)?;
                }
            }
            done += part.len() as u64;
        }
    }
    for patch in &plan.patches {
        new.write_all_at(&patch.value.to_le_bytes(), patch.at)?;
    }
    Ok(())
}

/// Whether the new file says what was planned, and each of its segments holds what the old one does, but for the
/// patched fields. The inner error says what is wrong.
fn verify(
    old: &File,
    new: &File,
    binary: &Binary,
    plan: &Plan,
    written: &Path,
) -> io::Result<Result<(), String>> {
    let now = match read_binary(written) {
        Ok(now) => now,
        Err(error) => return Ok(Err(format!("what was written is not well-formed: {error}"))),
    };
    let gain = layout::total(&layout::primable(&now));
    if gain != plan.after {
        return Ok(Err(format!("what was written has {gain} bytes for huge pages, not {}", plan.after)));
    }
    let (mut before, mut after) = (vec![0; CHUNK], vec![0; CHUNK]);
    for (was, is) in binary.segments.iter().zip(&now.segments) {
        if (was.address, was.header) != (is.address, is.header) || is.file_size < was.file_size {
            return Ok(Err(format!("what was written has another segment at {:#x}", was.address)));
        }
        let mut done = 0;
        while done < was.file_size {
            let length = CHUNK.min((was.file_size - done) as usize);
            old.read_exact_at(&mut before[..length], was.offset + done)?;
            new.read_exact_at(&mut after[..length], is.offset + done)?;
            let start = is.offset + done;
            done += length as u64;
            if before[..length] == after[..length] {
                continue;
            }
            for (index, (a, b)) in before[..length].iter().zip(&after[..length]).enumerate() {
                let at = start + index as u64;
                if a != b && !plan.patches.iter().any(|patch| (patch.at..patch.at + 8).contains(&at)) {
                    return Ok(Err(format!("what was written differs at offset {at}")));
                }
            }
        }
    }
    Ok(Ok(()))
}
