//! What makes a run the same as an earlier one: the binary, the library, the options and the arguments.
//!
//! A program behaves by its arguments, so that `xz -9 FILE` and `xz -d FILE` are two. The arguments themselves are not stored:
//! a password may be among them. Their digest is.

use super::MOST_BYTES;
use crate::elf::{build_id, hexadecimal};
use crate::mechanism::Plan;
use crate::program::Program;
use crate::request::{Mechanism, Request};
use megapage_kernel::trusted::{open_binary, open_regular, read_bounded};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// A file without a name of its build is read whole, up to so many bytes: a start is not to take longer for it.
const MOST_DIGESTED: u64 = 4 << 20;
/// Scripts among the arguments that are looked at.
const MOST_SCRIPTS: usize = 16;
/// The ends of names of files that are programs themselves to an interpreter.
const SCRIPTS: [&str; 16] = [
    "bash", "cjs", "class", "jar", "js", "lua", "mjs", "php", "pl", "py", "pyc", "pyz", "r", "rb", "sh",
    "war",
];

/// One state of one file.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileState {
    /// Its path.
    pub path: String,
    /// Its size.
    pub bytes: u64,
    /// When it was written: nanoseconds since 1970.
    pub modified_ns: i64,
    /// The name that the linker gave to the build; else the SHA-256 of the whole file; empty where it is a script.
    pub build: String,
}

impl FileState {
    fn of(path: &Path, file: &File) -> io::Result<FileState> {
        let found = file.metadata()?;
        let modified_ns = found.mtime().saturating_mul(1_000_000_000).saturating_add(found.mtime_nsec());
        let path = path.to_string_lossy().into_owned();
        Ok(FileState { path, bytes: found.size(), modified_ns, build: String::new() })
    }

    /// An ELF file. The name of the build is not all: what bundles a program with its runtime adds to a file that is linked
    /// already.
    pub fn of_binary(path: &Path) -> Result<FileState, String> {
        let wrong = |error: io::Error| format!("{}: {error}", path.display());
        let open = || open_binary(path).map_err(wrong);
        let state = FileState::of(path, &open()?).map_err(wrong)?;
        let build = match build_id(open()?) {
            Some(build) => build,
            None if state.bytes > MOST_DIGESTED => {
                return Err(format!(
                    "{} has no build-id, and is too large to be told by its contents (ld --build-id makes one)",
                    path.display()
                ));
            }
            None => digest([read_bounded(open()?, MOST_DIGESTED).map_err(wrong)?]),
        };
        Ok(FileState { build, ..state })
    }

    fn of_script(path: &Path) -> Option<FileState> {
        FileState::of(path, &open_regular(path).ok()?).ok()
    }
}

/// SHA-256 of these pieces, with their lengths, in hexadecimal digits.
pub(crate) fn digest(pieces: impl IntoIterator<Item = impl AsRef<[u8]>>) -> String {
    let mut sha = Sha256::new();
    for piece in pieces {
        let piece = piece.as_ref();
        sha.update((piece.len() as u64).to_le_bytes());
        sha.update(piece);
    }
    hexadecimal(&sha.finalize())
}

/// All that a profile holds for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Identity {
    /// The file that was named.
    pub program: String,
    /// The file that runs in the end.
    pub executable: FileState,
    /// The preloaded library.
    pub library: Option<FileState>,
    /// The version of megapage.
    pub megapage: String,
    /// What was asked for, as far as it changes what memory looks like.
    pub options: Vec<String>,
    /// How many arguments there are.
    pub arguments: u64,
    /// Their digest.
    pub arguments_sha256: String,
    /// Scripts and archives of programs among the arguments.
    pub scripts: Vec<FileState>,
}

impl Identity {
    /// Of a run that is decided on, with all `arguments` and the caller's LD_PRELOAD. Why there is none.
    pub fn of(
        program: &Program,
        plan: &Plan,
        request: &Request,
        arguments: &[OsString],
        preloaded: Option<&str>,
        library: Option<&Path>,
    ) -> Result<Identity, String> {
        let library = library.filter(|_| plan.uses(Mechanism::Preload));
        // A script that names its interpreter is the last of these, whatever its name.
        let named = program.script_arguments.last().map(OsStr::new).into_iter();
        let scripts = named.chain(arguments.iter().map(OsString::as_os_str).filter(|it| is_script(it)));
        let pieces =
            std::iter::once(program.path.as_os_str()).chain(arguments.iter().map(OsString::as_os_str));
        Ok(Identity {
            program: program.path.to_string_lossy().into_owned(),
            executable: FileState::of_binary(&program.executable)?,
            library: library.map(FileState::of_binary).transpose()?,
            megapage: env!("CARGO_PKG_VERSION").into(),
            options: options(plan, request, preloaded),
            arguments: arguments.len() as u64,
            arguments_sha256: digest(pieces.map(OsStr::as_bytes)),
            scripts: scripts.take(MOST_SCRIPTS).filter_map(|it| FileState::of_script(it.as_ref())).collect(),
        })
    }

    /// The name of the profile's file: a digest of everything here.
    pub fn key(&self) -> Result<String, String> {
        let text = serde_json::to_vec(self).map_err(|error| error.to_string())?;
        match text.len() as u64 {
            length if length > MOST_BYTES / 2 => Err("its options are too long".into()),
            _ => Ok(digest([text])),
        }
    }
}

fn is_script(argument: &OsStr) -> bool {
    let end = Path::new(argument).extension().map(|end| end.to_string_lossy().to_ascii_lowercase());
    end.is_some_and(|end| SCRIPTS.contains(&end.as_str()))
}

fn options(plan: &Plan, request: &Request, preloaded: Option<&str>) -> Vec<String> {
    let mechanisms: Vec<&str> = plan.used().into_iter().map(Mechanism::name).collect();
    let mut options = vec![
        format!("mechanisms {}", mechanisms.join(",")),
        format!("heap {}", plan.heap.name()),
        format!("shm {}", request.shm.name()),
        format!("text {}", request.text.kind.name()),
        format!("fork {}", request.fork.name()),
        format!("return-after {}", request.return_after.variable()),
    ];
    options.extend(request.pool.as_ref().map(|pool| format!("pool {}", pool.display())));
    options.extend(request.children.then(|| "children".into()));
    options.extend(preloaded.map(|others| format!("LD_PRELOAD {others}")));
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(path: &str) -> FileState {
        FileState { path: path.into(), bytes: 1, modified_ns: 2, build: "3".into() }
    }

    #[test]
    fn every_part_changes_the_key() {
        let same = || Identity {
            program: "p".into(),
            executable: state("e"),
            library: Some(state("l")),
            megapage: "0".into(),
            options: vec!["heap thp".into()],
            arguments: 1,
            arguments_sha256: digest(["x"]),
            scripts: vec![state("s")],
        };
        let file = |change: fn(&mut FileState)| {
            let mut changed = state("e");
            change(&mut changed);
            changed
        };
        let others = [
            Identity { program: "q".into(), ..same() },
            Identity { executable: file(|it| it.path = "f".into()), ..same() },
            Identity { executable: file(|it| it.bytes = 9), ..same() },
            Identity { executable: file(|it| it.modified_ns = 9), ..same() },
            Identity { executable: file(|it| it.build = "9".into()), ..same() },
            Identity { library: None, ..same() },
            Identity { library: Some(state("m")), ..same() },
            Identity { megapage: "1".into(), ..same() },
            Identity { options: vec!["heap 2m".into()], ..same() },
            Identity { arguments: 2, ..same() },
            Identity { arguments_sha256: digest(["y"]), ..same() },
            Identity { scripts: Vec::new(), ..same() },
            Identity { scripts: vec![file(|it| it.modified_ns = 9)], ..same() },
        ];
        let mut keys: Vec<String> = others.iter().map(|it| it.key().unwrap()).collect();
        assert_eq!(same().key(), same().key());
        keys.push(same().key().unwrap());
        keys.sort();
        keys.dedup();
        assert_eq!(keys.len(), others.len() + 1);
        let long = Identity { options: vec!["x".repeat(MOST_BYTES as usize)], ..same() };
        assert!(long.key().is_err());
    }

    #[test]
    fn arguments_are_distinguished_by_where_they_end() {
        let all = [vec!["ab", "c"], vec!["a", "bc"], vec!["abc"], vec!["abc", ""], vec!["c", "ab"]];
        let mut digests: Vec<String> = all.iter().map(digest).collect();
        digests.sort();
        digests.dedup();
        assert_eq!(digests.len(), all.len());
        // FIPS 180-4's example: what other tools make of the same bytes.
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(hexadecimal(&Sha256::digest("abc")), known);
    }

    #[test]
    fn scripts_are_known_by_the_ends_of_their_names() {
        for (name, is) in [("a.py", true), ("x/b.JAR", true), ("py", false), ("a.txt", false), ("-c", false)]
        {
            assert_eq!(is_script(OsStr::new(name)), is, "{name}");
        }
    }

    #[test]
    fn a_large_file_without_a_name_of_its_build_has_no_identity() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("file");
        std::fs::write(&path, "x").unwrap();
        assert_eq!(FileState::of_binary(&path).unwrap().build, digest(["x"]));
        File::options().write(true).open(&path).unwrap().set_len(MOST_DIGESTED + 1).unwrap();
        assert!(FileState::of_binary(&path).unwrap_err().contains("has no build-id"));
    }
}
