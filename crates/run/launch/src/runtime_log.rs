//! Reads the program's output on its standard streams, if these are files. The launcher puts no
//! stream through a pipe: a pipe would not outlive the launcher, and would not behave as a
//! terminal.

use crate::messages::{Explained, explain};
use megapage_kernel::KernelRoot;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

/// Largest number of bytes read from each file: a JVM's messages about its memory come first.
const LONGEST: u64 = 256 << 10;

/// The files, with their lengths at the start.
#[derive(Debug, Default)]
pub(crate) struct RuntimeLog {
    files: Vec<(File, u64)>,
}

impl RuntimeLog {
    /// Records the present ends of the files. Takes none if `asked` is false, and no terminal or
    /// pipe.
    pub fn listen(asked: bool) -> RuntimeLog {
        if !asked {
            return RuntimeLog::default();
        }
        let (output, error) = (std::io::stdout(), std::io::stderr());
        let mut files: Vec<(File, u64)> =
            [(1, output.as_fd()), (2, error.as_fd())].into_iter().filter_map(open).collect();
        // Both streams may go to one file.
        let identity = |(file, _): &(File, u64)| file.metadata().map(|it| (it.dev(), it.ino())).ok();
        files.dedup_by(|one, other| identity(one) == identity(other));
        RuntimeLog { files }
    }

    /// Returns the known messages in the text added since.
    pub fn explain(self) -> Vec<Explained> {
        let mut text = String::new();
        for (mut file, start) in self.files {
            let mut bytes = Vec::new();
            // A file that became shorter meanwhile is read from its start.
            let length = file.metadata().map_or(0, |it| it.len());
            let from = if length < start { 0 } else { start };
            if file.seek(SeekFrom::Start(from)).is_ok() && file.take(LONGEST).read_to_end(&mut bytes).is_ok()
            {
                text.push_str(&String::from_utf8_lossy(&bytes));
                text.push('\n');
            }
        }
        explain(&text)
    }
}

fn open((number, stream): (i32, BorrowedFd<'_>)) -> Option<(File, u64)> {
    let own = File::from(stream.try_clone_to_owned().ok()?);
    let length = own.metadata().ok().filter(|it| it.is_file())?.len();
    // The stream may be open only for writing, and its position is the program's.
    let file = File::open(KernelRoot::own_descriptor_path(number)).ok()?;
    Some((file, length))
}
