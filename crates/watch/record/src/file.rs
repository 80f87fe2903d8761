//! Output of a recording: appends it line by line, so that a crash tears at most the last line.

use megapage_kernel::trusted::{append_report, open_regular};
use megapage_plan::recording::Line;
use std::fs::File;
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::path::Path;

/// First bytes of a recording.
const START: &[u8] = b"{\"header\":";

/// Recording that is being written.
pub struct Output {
    to: Box<dyn Write>,
    written: u64,
    most: u64,
}

impl Output {
    /// Opens a file of at most `most` bytes, and continues a recording that is there.
    ///
    /// # Errors
    /// `AlreadyExists` if there is anything else than a recording.
    pub fn file(path: &Path, most: u64) -> io::Result<Output> {
        if !is_recording(path)? {
            let what = "it is there and no recording: remove it, or give another path";
            return Err(io::Error::new(ErrorKind::AlreadyExists, what));
        }
        let mut file = append_report(path)?;
        let mut written = file.metadata()?.len();
        // A line that a crash has torn gets an end, so that the next line stands by itself.
        if written > 0 && last_byte(&mut file)? != b'\n' {
            file.write_all(b"\n")?;
            written += 1;
        }
        Ok(Output { to: Box::new(file), written, most })
    }

    /// Writes to any other place, such as standard output.
    pub fn to(to: Box<dyn Write>, most: u64) -> Output {
        Output { to, written: 0, most }
    }

    /// Appends a line. Returns false if there is no room for it; then nothing was written. The end
    /// of a recording always has room.
    pub fn append(&mut self, line: &Line) -> io::Result<bool> {
        let text = line.text();
        let is_end = matches!(line, Line::End(_));
        if !is_end && self.written + text.len() as u64 > self.most {
            return Ok(false);
        }
        self.to.write_all(text.as_bytes())?;
        self.to.flush()?;
        self.written += text.len() as u64;
        Ok(true)
    }

    /// Returns the bytes of the recording, including those that were there before.
    pub fn written(&self) -> u64 {
        self.written
    }
}

/// Returns true if there is a recording, or no content yet.
fn is_recording(path: &Path) -> io::Result<bool> {
    let mut file = match open_regular(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(true),
        file => file?,
    };
    let mut start = Vec::new();
    (&mut file).take(START.len() as u64).read_to_end(&mut start)?;
    Ok(start.is_empty() || start == START)
}

fn last_byte(file: &mut File) -> io::Result<u8> {
    let mut byte = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut byte)?;
    Ok(byte[0])
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_plan::recording::{End, Moment, read};

    fn moment(at: f64) -> Line {
        Line::Moment(Moment { at, ..Moment::default() })
    }

    fn header() -> Line {
        let text = r#"{"header":{"version":1,"host":"h","start":1,"every":1.0,"budget":0.5,"named":false,"kernel":"",
            "processor":"","processors":1,"memory":1,"tlb":{"first_base":1,"first_2m":1,"first_1g":1,"second":1,
            "second_1g":1,"source":"model"},"thp":null,"tracker":null,"costs":null,"lacks":[]}}"#;
        serde_json::from_str(text).unwrap()
    }

    #[test]
    fn a_torn_recording_is_gone_on_with() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r");
        let mut output = Output::file(&path, 1 << 20).unwrap();
        assert!(output.append(&header()).unwrap() && output.append(&moment(0.0)).unwrap());
        let text = std::fs::read_to_string(&path).unwrap();
        std::fs::write(&path, &text[..text.len() - 5]).unwrap();
        let mut output = Output::file(&path, 1 << 20).unwrap();
        assert!(output.append(&header()).unwrap() && output.append(&moment(0.0)).unwrap());
        let text = std::fs::read_to_string(&path).unwrap();
        assert_eq!(output.written(), text.len() as u64);
        let (recordings, notes) = read(&text).unwrap();
        assert_eq!((recordings.len(), recordings[0].moments.len(), recordings[1].moments.len()), (2, 0, 1));
        assert_eq!(notes.len(), 1, "{notes:?}");
    }

    #[test]
    fn it_does_not_grow_beyond_its_bound_and_still_ends() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("r");
        let mut output = Output::file(&path, header().text().len() as u64 + 10).unwrap();
        assert!(output.append(&header()).unwrap());
        assert!(!output.append(&moment(0.0)).unwrap());
        let end = Line::End(End { at: 1.0, own: 0.0, longest: 1.0, why: "full".into() });
        assert!(output.append(&end).unwrap());
        let (recordings, _) = read(&std::fs::read_to_string(&path).unwrap()).unwrap();
        assert_eq!(recordings[0].end.as_ref().unwrap().why, "full");
    }

    #[test]
    fn what_is_no_recording_is_left_alone() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notes");
        std::fs::write(&path, "mine\n").unwrap();
        assert_eq!(Output::file(&path, 1 << 20).err().unwrap().kind(), ErrorKind::AlreadyExists);
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "mine\n");
        assert!(Output::file(directory.path(), 1 << 20).is_err());
    }
}
