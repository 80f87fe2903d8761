//! Captured trees made of fuzz input, for readers that take a [`KernelRoot`].

use megapage_kernel::KernelRoot;
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};
use tempfile::TempDir;

/// The process whose files a target writes.
pub(crate) const PID: megapage_units::Pid = megapage_units::Pid(9);

/// Limits of the files and path components of one input; the parts beyond them are ignored.
const MOST_FILES: usize = 64;
const MOST_COMPONENTS: usize = 16;
const LONGEST_COMPONENT: usize = 100;

/// Makes a directory in memory, if there is a file system in memory: a fuzzer writes thousands of
/// files in a second. It is in TMPDIR if that is set: a fuzzer ends without destructors, and its
/// starter removes the remains (scripts/fuzz).
fn directory() -> TempDir {
    let made = match std::env::var_os("TMPDIR") {
        Some(_) => tempfile::tempdir(),
        None => tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir()),
    };
    made.expect("a directory for the tree")
}

/// A tree that is emptied with the value.
pub(crate) struct Tree {
    directory: TempDir,
}

impl Tree {
    /// Makes an empty one.
    pub(crate) fn new() -> Tree {
        Tree { directory: directory() }
    }

    /// Makes a tree of the [`files`] of an input.
    pub(crate) fn of(input: &[u8]) -> Tree {
        let tree = Tree::new();
        files(input).into_iter().for_each(|(path, text)| tree.write(path, text));
        tree
    }

    /// Returns the directory of its files.
    pub(crate) fn path(&self) -> &Path {
        self.directory.path()
    }

    /// Returns the tree as readers take it.
    pub(crate) fn root(&self) -> KernelRoot {
        KernelRoot::captured(self.path())
    }

    /// Writes one file, with its directories.
    pub(crate) fn write(&self, path: impl AsRef<Path>, text: &[u8]) {
        let path = self.path().join(path);
        if let Some(parent) = path.parent() {
            fs::create_dir_all(parent).expect("a directory of ours");
        }
        fs::write(path, text).expect("a file of ours");
    }

    /// Removes one file, and the directories that are empty then.
    fn remove(&self, path: &Path) {
        fs::remove_file(self.path().join(path)).expect("a file of ours");
        for parent in path.ancestors().skip(1).filter(|parent| !parent.as_os_str().is_empty()) {
            if fs::remove_dir(self.path().join(parent)).is_err() {
                return;
            }
        }
    }
}

/// Returns the files of an input, in the form in which tail(1) prints several: `==> PATH <==`, then
/// the text, up to the next such line. Text before the first is ignored, as are paths that would
/// leave the tree, and files below a file.
fn files(input: &[u8]) -> BTreeMap<PathBuf, &[u8]> {
    let mut all: Vec<(Option<PathBuf>, usize, usize)> = Vec::new();
    let mut at = 0;
    for line in input.split_inclusive(|byte| *byte == b'\n') {
        let end = at + line.len();
        if let Some(path) = heading(line) {
            all.push((inside(path), end, end));
        } else if let Some((_, _, last)) = all.last_mut() {
            *last = end;
        }
        at = end;
    }
    let mut files: BTreeMap<PathBuf, &[u8]> = BTreeMap::new();
    for (path, from, to) in all.into_iter().take(MOST_FILES) {
        let fits = |path: &PathBuf| {
            let meets =
                |other: &PathBuf| other != path && (other.starts_with(path) || path.starts_with(other));
            !files.keys().any(meets)
        };
        if let Some(path) = path.filter(fits) {
            files.insert(path, &input[from..to]);
        }
    }
    files
}

/// Returns the path of a line `==> PATH <==`.
fn heading(line: &[u8]) -> Option<&str> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    std::str::from_utf8(line.strip_prefix(b"==> ")?.strip_suffix(b" <==")?).ok()
}

/// Returns a path that stays below the root of the tree.
fn inside(path: &str) -> Option<PathBuf> {
    let path = Path::new(path);
    let fits = |part: Component<'_>| match part {
        Component::Normal(name) => name.len() <= LONGEST_COMPONENT && !name.as_encoded_bytes().contains(&0),
        _ => false,
    };
    let count = path.components().count();
    ((1..=MOST_COMPONENTS).contains(&count) && path.components().all(fits))
        // Without doubled and trailing slashes.
        .then(|| path.components().collect())
}

/// Gives a reader a tree in which `path` holds `text`. Each thread keeps its tree: otherwise making
/// directories would take most of the time.
pub(crate) fn with_file<T>(path: &str, text: &[u8], read: impl FnOnce(&KernelRoot) -> T) -> T {
    thread_local! {
        static TREE: RefCell<Tree> = RefCell::new(Tree::new());
    }
    TREE.with_borrow(|tree| {
        tree.write(path, text);
        read(&tree.root())
    })
}

/// Gives a reader a tree of the [`files`] of an input, which must not change it. Each thread keeps
/// its tree, and files that two inputs have in common stay.
pub(crate) fn with_tree<T>(input: &[u8], read: impl FnOnce(&KernelRoot) -> T) -> T {
    thread_local! {
        static KEPT: RefCell<(Tree, BTreeMap<PathBuf, Vec<u8>>)> = RefCell::new((Tree::new(), BTreeMap::new()));
    }
    KEPT.with_borrow_mut(|(tree, kept)| {
        let wanted = files(input);
        kept.retain(|path, _| {
            let stays = wanted.contains_key(path);
            if !stays {
                tree.remove(path);
            }
            stays
        });
        for (path, text) in wanted {
            if kept.get(&path).is_none_or(|former| former != text) {
                tree.write(&path, text);
                kept.insert(path, text.to_vec());
            }
        }
        read(&tree.root())
    })
}

/// Returns the path of a file of [`PID`].
pub(crate) fn of_process(file: &str) -> String {
    format!("proc/{PID}/{file}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_input_is_cut_into_files() {
        let found =
            files(b"ignored\n==> a/b <==\none\ntwo\n==> c <==\n==> a <==\nabove a file\n==> d <==\nlast");
        let found: Vec<(&str, &[u8])> =
            found.iter().map(|(path, text)| (path.to_str().unwrap(), *text)).collect();
        assert_eq!(found, [("a/b", &b"one\ntwo\n"[..]), ("c", b""), ("d", b"last")]);
    }

    #[test]
    fn a_tree_is_that_of_its_input_whatever_came_before() {
        let texts = |input: &[u8]| {
            with_tree(input, |root| {
                let names = root.list("").unwrap();
                let text =
                    |name: &String| root.read(name).unwrap_or_else(|_| root.list(name).unwrap().join(" "));
                names.iter().map(|name| format!("{name}: {}", text(name))).collect::<Vec<_>>()
            })
        };
        assert_eq!(texts(b"==> a/b/c <==\n1\n==> a/d <==\n2\n==> e <==\n3"), ["a: b d", "e: 3"]);
        assert_eq!(texts(b"==> a/d <==\n2\n==> e <==\n4"), ["a: d", "e: 4"]);
        assert_eq!(texts(b"==> a <==\n5\n==> a/b <==\n6"), ["a: 5\n"]);
        assert!(texts(b"").is_empty());
    }

    #[test]
    fn no_path_leaves_the_tree() {
        for path in ["/etc/passwd", "../x", "a/../../x", "", "a/./../b", "a\0b", &"x".repeat(101)] {
            assert_eq!(inside(path), None, "{path:?}");
        }
        assert_eq!(inside("sys/kernel/mm"), Some("sys/kernel/mm".into()));
        let tree = Tree::of(b"==> sys//fs/ <==\na file");
        assert_eq!(fs::read(tree.path().join("sys/fs")).unwrap(), b"a file");
        let tree = Tree::of(b"==> ../a <==\noutside\n==> c <==\nkept");
        assert_eq!(fs::read(tree.path().join("c")).unwrap(), b"kept");
        assert_eq!(fs::read_dir(tree.path()).unwrap().count(), 1);
    }
}
