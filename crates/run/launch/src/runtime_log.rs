//! What the program has printed on its standard streams, where these are files: a stream is never put through a pipe of the
//! launcher's, which would outlive neither the launcher's end nor a terminal's habits.

use crate::messages::{Explained, explain};
use megapage_kernel::KernelRoot;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;

/// What is read of each, at most: what a JVM says of its memory comes first.
const LONGEST: u64 = 256 << 10;

/// The files, with their lengths at the start.
#[derive(Debug, Default)]
pub(crate) struct RuntimeLog {
    files: Vec<(File, u64)>,
}

impl RuntimeLog {
    /// Notes where the files end now. Listens to none where it is not asked to, and to no terminal or pipe.
    pub fn listen(asked: bool) -> RuntimeLog {
        if !asked {
            return RuntimeLog::default();
        }
        let (output, error) = (std::io::stdout(), std::io::stderr());
        let mut files: Vec<(File, u64)> =
            [(1, output.as_fd()), (2, error.as_fd())].into_iter().filter_map(open).collect();
        // Both may go to one file.
        let identity = |(file, _): &(File, u64)| file.metadata().map(|it| (it.dev(), it.ino())).ok();
        files.dedup_by(|one, other| identity(one) == identity(other));
        RuntimeLog { files }
    }

    /// The messages among what has been added since.
    pub fn explain(self) -> Vec<Explained> {
        let mut text = String::new();
        for (mut file, start) in self.files {
            let mut bytes = Vec::new();
            // A file that was made shorter meanwhile begins anew.
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
    // The stream itself may be open for writing alone, and its position is the program's.
    let file = File::open(KernelRoot::own_descriptor_path(number)).ok()?;
    Some((file, length))
}
