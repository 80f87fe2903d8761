//! Examines a program's files only: finds the mechanisms that can reach it, and facts that make one
//! harmful.

use crate::elf::{ElfFacts, FileKind, inspect_file, machine_name};
use crate::jvm::Java;
use crate::libraries::LibraryPath;
use crate::versions::{self, Versions};
use megapage_kernel::exec;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Largest depth of scripts that name scripts as their interpreters; the kernel's own bound.
const DEEPEST_SCRIPT: usize = 5;
/// Largest number of libraries that are examined for one program. Further ones are listed in
/// [`Program::missing`].
const MOST_LIBRARIES: usize = 512;

/// Reasons why a program cannot be examined, and so cannot be run. [`InspectError::exit_status`] is
/// the exit status that a shell would give.
#[derive(Debug, Error)]
pub enum InspectError {
    /// A name without a slash that is in no directory of PATH.
    #[error("{0}: not found in PATH")]
    NotInPath(String),
    /// The file does not exist.
    #[error("{0}: no such file")]
    NotFound(PathBuf),
    /// The path is a directory, a device or a socket.
    #[error("{path}: is {what}, not a program")]
    NotAFile {
        /// The path.
        path: PathBuf,
        /// The kind of file that it is.
        what: &'static str,
    },
    /// The calling user may not execute the file.
    #[error(
        "{0}: no permission to execute it; chmod +x, or check the mount's noexec and the directories above"
    )]
    NotExecutable(PathBuf),
    /// A script whose interpreter cannot be run.
    #[error("{script}: its interpreter {interpreter} cannot be run: {why}")]
    Interpreter {
        /// The script.
        script: PathBuf,
        /// The interpreter as the first line names it.
        interpreter: String,
        /// The reason why it cannot be run.
        why: Box<InspectError>,
    },
    /// Scripts name scripts as interpreters, deeper than the kernel follows.
    #[error("{0}: more than {DEEPEST_SCRIPT} scripts that name scripts as their interpreters")]
    TooDeep(PathBuf),
    /// The file begins as an ELF file but is not well-formed.
    #[error("{path}: not a well-formed program: {what}")]
    Malformed {
        /// The file.
        path: PathBuf,
        /// The error in it.
        what: String,
    },
    /// Another error of the kernel.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

impl InspectError {
    /// Returns 127 if there is no such program, 126 if there is one that cannot be run.
    pub fn exit_status(&self) -> u8 {
        match self {
            InspectError::NotInPath(_) | InspectError::NotFound(_) => 127,
            _ => 126,
        }
    }
}

/// The way in which a program gets its C library.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Linkage {
    /// glibc's loader runs it.
    Glibc,
    /// musl's loader runs it.
    Musl,
    /// Another loader, by its path.
    OtherLoader(String),
    /// No loader: everything is in the file.
    Static,
}

/// A way in which the new process gets rights that the caller lacks. The loader then ignores
/// LD_PRELOAD and the tunables (AT_SECURE, ld.so(8)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Privilege {
    /// Set-user-ID, to this user.
    SetUser(u32),
    /// Set-group-ID, to this group.
    SetGroup(u32),
    /// File capabilities.
    Capabilities,
}

megapage_units::named! {
    /// A language runtime that manages its own heap.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Runtime {
        /// A program built by the Go linker.
        Go = "Go",
        /// The JDK's launcher, or a program that links the JVM.
        Jvm = "JVM",
        /// Node.js.
        Node = "Node.js",
        /// CPython.
        Python = "Python",
        /// PHP.
        Php = "PHP",
    }
}

/// An allocator that the program brings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Allocator {
    /// The executable defines `malloc`: every library in the process uses it.
    InExecutable,
    /// A needed library provides `malloc`; a preloaded library comes before it.
    Library(String),
}

/// A dynamic symbol that a file of the program imports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// The symbol.
    pub symbol: String,
    /// The file that imports it.
    pub file: PathBuf,
}

/// Functions after which two processes hold the same private memory until one writes. vfork(2) and
/// posix_spawn(3) share it and copy nothing, so they are not listed. clone(2) may do either.
const FORKS: [&str; 7] = ["fork", "_Fork", "__fork", "__libc_fork", "forkpty", "daemon", "clone"];

/// Functions that allocate or free and that the preloaded library does not provide. Memory from one
/// of them that `free` releases would corrupt the heap, and so would the reverse.
const PRIVATE_ALLOCATORS: &str = "mallocx rallocx sdallocx dallocx je_malloc je_free tc_malloc tc_free tc_new mi_malloc \
    mi_free mi_heap_malloc mi_new scalable_malloc";

/// Sanitizers that lay out the address space, each with a function that its runtime exports in any
/// kind of link.
const SANITIZERS: [(&str, &str); 4] =
    [("asan", "__asan_init"), ("tsan", "__tsan_init"), ("msan", "__msan_init"), ("hwasan", "__hwasan_init")];

/// A resolved and examined program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// The named file.
    pub path: PathBuf,
    /// The ELF file that runs finally: `path` itself, or the interpreter of a script.
    pub executable: PathBuf,
    /// For a script: the arguments between the executable and the program's own, with the script's
    /// path last. A script that names `/usr/bin/env NAME` is resolved to NAME, so that no other
    /// exec comes between.
    pub script_arguments: Vec<String>,
    /// The architecture, such as `x86-64`.
    pub machine: String,
    /// True if it is a 64-bit program of the architecture that megapage was built for.
    pub native: bool,
    /// True if the executable is position-independent. With [`Linkage::Static`], it is a
    /// static-pie.
    pub position_independent: bool,
    /// The way in which it gets its C library.
    pub linkage: Linkage,
    /// True if its glibc, linked or loaded, has the tunable `glibc.malloc.hugetlb` (since 2.35).
    pub heap_tunable: bool,
    /// Rights that the process gets and that the caller lacks.
    pub privilege: Option<Privilege>,
    /// The language runtime, if one is recognised.
    pub runtime: Option<Runtime>,
    /// The Java installation, if the runtime is a JVM.
    pub java: Option<Java>,
    /// The allocator that it brings.
    pub allocator: Option<Allocator>,
    /// An import of an allocator's private interface.
    pub private_allocation: Option<Import>,
    /// Imports of [fork(2)] and similar functions by the executable and the libraries that it
    /// needs, libc and the loader excepted. Libraries that are loaded later by dlopen(3) are not
    /// known here.
    ///
    /// [fork(2)]: https://man7.org/linux/man-pages/man2/fork.2.html
    pub forks: Vec<Import>,
    /// The sanitizer that it was built with (`asan`, `tsan`, `msan`, `hwasan`). Its runtime lays
    /// out the address space itself. It ends a program in which another library was loaded first.
    pub sanitizer: Option<&'static str>,
    /// The libraries that it needs, and those that they need, if they were found.
    pub libraries: Vec<PathBuf>,
    /// Libraries that were not found, or that exceeded the largest number.
    pub missing: Vec<String>,
    /// Versions of symbols in its C library, and in others that a library of ours may need. Empty
    /// if its loader is not glibc's.
    pub offered: Versions,
}

impl Program {
    /// Returns an ordinary dynamic program of this architecture, with a glibc that has the tunable.
    /// Others are made from it.
    pub fn ordinary(path: impl Into<PathBuf>) -> Program {
        let path = path.into();
        Program {
            executable: path.clone(),
            path,
            script_arguments: Vec::new(),
            machine: std::env::consts::ARCH.replace('_', "-"),
            native: true,
            position_independent: true,
            linkage: Linkage::Glibc,
            heap_tunable: true,
            privilege: None,
            runtime: None,
            java: None,
            allocator: None,
            private_allocation: None,
            forks: Vec::new(),
            sanitizer: None,
            libraries: Vec::new(),
            missing: Vec::new(),
            offered: Versions::new(),
        }
    }

    /// Examines the program that execvp(3) would run for `name`: a path if it has a slash, else a
    /// file in the caller's PATH. Only reads files; executes nothing.
    pub fn inspect(name: impl AsRef<OsStr>) -> Result<Program, InspectError> {
        let path = resolve(name.as_ref(), std::env::var_os("PATH").as_deref())?;
        let mut program = Program::inspect_path(&path, 0)?;
        program.path = path;
        Ok(program)
    }

    fn inspect_path(path: &Path, depth: usize) -> Result<Program, InspectError> {
        check_runnable(path)?;
        let kind = match inspect_file(path) {
            // The kernel executes it nevertheless.
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                let machine = "an unknown machine (its file cannot be read)";
                return Ok(Program::unknown(path, machine.into(), "unknown"));
            }
            kind => kind,
        };
        let kind = kind.map_err(|source| match source.kind() {
            io::ErrorKind::InvalidData => {
                InspectError::Malformed { path: path.into(), what: source.to_string() }
            }
            _ => InspectError::Io { path: path.into(), source },
        })?;
        match kind {
            FileKind::Elf64(facts) => Ok(Program::from_elf(path, facts)),
            FileKind::Elf32(machine) => Ok(Program::foreign(path, machine)),
            FileKind::Script(line) => Program::from_script(path, &line, depth),
            // The same as execvp(3) does with a file of a format that the kernel does not know.
            FileKind::Other => Program::from_script(path, "/bin/sh", depth),
        }
    }

    /// Examines a script: its interpreter, with the arguments that the kernel would put before the
    /// user's.
    fn from_script(script: &Path, line: &str, depth: usize) -> Result<Program, InspectError> {
        if depth >= DEEPEST_SCRIPT {
            return Err(InspectError::TooDeep(script.into()));
        }
        let (interpreter, argument) = match line.split_once([' ', '\t']) {
            Some((interpreter, argument)) => (interpreter, argument.trim()),
            None => (line, ""),
        };
        let names_env = Path::new(interpreter).file_name() == Some(OsStr::new("env"));
        let is_plain_name = !argument.is_empty() && !argument.contains([' ', '\t', '=', '-']);
        let (path, argument) = if names_env && is_plain_name {
            (resolve(OsStr::new(argument), std::env::var_os("PATH").as_deref()), "")
        } else {
            (Ok(PathBuf::from(interpreter)), argument)
        };
        let found = path.and_then(|path| Program::inspect_path(&path, depth + 1));
        let mut program = found.map_err(|why| InspectError::Interpreter {
            script: script.into(),
            interpreter: if names_env { line.into() } else { interpreter.into() },
            why: Box::new(why),
        })?;
        if !argument.is_empty() {
            program.script_arguments.push(argument.to_string());
        }
        program.script_arguments.push(script.to_string_lossy().into_owned());
        Ok(program)
    }

    fn foreign(path: &Path, machine: u16) -> Program {
        Program::unknown(path, format!("{} (32-bit)", machine_name(machine)), "32-bit")
    }

    /// Returns a program whose file is not examined.
    fn unknown(path: &Path, machine: String, linkage: &str) -> Program {
        Program {
            machine,
            native: false,
            position_independent: false,
            linkage: Linkage::OtherLoader(linkage.into()),
            heap_tunable: false,
            privilege: privilege_of(path),
            ..Program::ordinary(path)
        }
    }

    fn from_elf(path: &Path, facts: ElfFacts) -> Program {
        let machine = machine_name(facts.machine);
        let native = machine.replace('-', "_") == std::env::consts::ARCH;
        let linkage = match &facts.loader {
            None => Linkage::Static,
            Some(loader) if loader.contains("ld-musl") => Linkage::Musl,
            Some(loader) if loader.contains("/ld-linux") || loader.contains("/ld64") => Linkage::Glibc,
            Some(loader) => Linkage::OtherLoader(loader.clone()),
        };
        let loader_knows_tunable = || {
            let loader = facts.loader.as_deref().map(Path::new)?;
            match inspect_file(loader).ok()? {
                FileKind::Elf64(facts) => Some(facts.heap_tunable),
                _ => None,
            }
        };
        let heap_tunable = match linkage {
            Linkage::Glibc => loader_knows_tunable().unwrap_or(false),
            Linkage::Static => facts.heap_tunable,
            _ => false,
        };
        let mut program = Program {
            machine,
            native,
            position_independent: facts.position_independent,
            linkage,
            heap_tunable,
            privilege: privilege_of(path),
            allocator: facts.exports.contains(&"malloc").then_some(Allocator::InExecutable),
            ..Program::ordinary(path)
        };
        program.follow_libraries(path, facts);
        program.java = (program.runtime == Some(Runtime::Jvm)).then(|| Java::of(path));
        program
    }

    /// Examines the executable and every library that it needs, breadth first as the loader does.
    fn follow_libraries(&mut self, path: &Path, facts: ElfFacts) {
        let library_path = LibraryPath::of_machine(std::env::var("LD_LIBRARY_PATH").ok().as_deref());
        let mut seen: BTreeSet<String> = BTreeSet::new();
        let (loader, run_paths) = (facts.loader.clone(), facts.run_paths.clone());
        let mut queue = std::collections::VecDeque::from([(path.to_path_buf(), facts)]);
        while let Some((file, facts)) = queue.pop_front() {
            self.note(&file, &facts);
            for name in &facts.needed {
                if !seen.insert(name.clone()) {
                    continue;
                }
                let found = library_path.find(name, &file, &facts.run_paths);
                let inspected = found.as_ref().and_then(|path| inspect_file(path).ok());
                match (found, inspected) {
                    (Some(path), Some(FileKind::Elf64(facts))) if seen.len() <= MOST_LIBRARIES => {
                        self.libraries.push(path.clone());
                        queue.push_back((path, facts));
                    }
                    _ => self.missing.push(name.clone()),
                }
            }
        }
        if let (Linkage::Glibc, Some(loader)) = (&self.linkage, loader) {
            self.offered = versions::offered(Path::new(&loader), |name| {
                let needed = self.libraries.iter().find(|path| path.ends_with(name));
                needed.cloned().or_else(|| library_path.find(name, path, &run_paths))
            });
        }
    }

    /// Records the facts in one file that hold for the whole program.
    fn note(&mut self, file: &Path, facts: &ElfFacts) {
        let name = file.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let exports = |symbol: &str| facts.exports.contains(&symbol);
        let runtime = match () {
            () if facts.go => Some(Runtime::Go),
            () if exports("napi_create_function") => Some(Runtime::Node),
            () if exports("JLI_Launch") || name.starts_with("libjvm.so") => Some(Runtime::Jvm),
            () if exports("Py_BytesMain") => Some(Runtime::Python),
            () if exports("php_request_startup") => Some(Runtime::Php),
            () => None,
        };
        self.runtime = self.runtime.or(runtime);
        let names = |needed: &String, name: &str| {
            needed.starts_with(&format!("lib{name}.so")) || needed.starts_with(&format!("libclang_rt.{name}"))
        };
        let sanitizer = SANITIZERS
            .into_iter()
            .find(|(name, entry)| exports(entry) || facts.needed.iter().any(|needed| names(needed, name)));
        self.sanitizer = self.sanitizer.or(sanitizer.map(|(name, _)| name));

        let is_libc = ["libc.so", "ld-linux", "ld64", "libpthread.so"].iter().any(|c| name.starts_with(c));
        if is_libc {
            return;
        }
        let provides_malloc = exports("malloc") || exports("mallocx") || exports("mi_malloc");
        if file != self.executable && provides_malloc && self.allocator.is_none() {
            self.allocator = Some(Allocator::Library(name));
        }
        for symbol in &facts.imports {
            let import = || Import { symbol: symbol.clone(), file: file.into() };
            if FORKS.contains(&symbol.as_str()) {
                self.forks.push(import());
            }
            // An allocator's own files may use its private names.
            if PRIVATE_ALLOCATORS.split(' ').any(|name| name == symbol) && !provides_malloc {
                self.private_allocation.get_or_insert_with(import);
            }
        }
    }
}

/// Returns the file that execvp(3) would run for `name`.
fn resolve(name: &OsStr, path_variable: Option<&OsStr>) -> Result<PathBuf, InspectError> {
    if name.as_encoded_bytes().contains(&b'/') {
        return Ok(name.into());
    }
    let unresolved = || InspectError::NotInPath(name.to_string_lossy().into_owned());
    if name.is_empty() {
        return Err(unresolved());
    }
    let mut refused = None;
    for directory in std::env::split_paths(path_variable.unwrap_or(OsStr::new("/bin:/usr/bin"))) {
        // An empty part of PATH means the current directory.
        let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { &directory };
        let candidate = directory.join(name);
        match check_runnable(&candidate) {
            Ok(()) => return Ok(candidate),
            Err(InspectError::NotFound(_)) => {}
            Err(error) => {
                refused.get_or_insert(error);
            }
        }
    }
    Err(refused.unwrap_or_else(unresolved))
}

/// Checks that `path` is a regular file that the caller may execute.
fn check_runnable(path: &Path) -> Result<(), InspectError> {
    let metadata = fs::metadata(path).map_err(|source| match source.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => InspectError::NotFound(path.into()),
        io::ErrorKind::PermissionDenied => InspectError::NotExecutable(path.into()),
        _ => InspectError::Io { path: path.into(), source },
    })?;
    if !metadata.is_file() {
        let what = if metadata.is_dir() { "a directory" } else { "a special file" };
        return Err(InspectError::NotAFile { path: path.into(), what });
    }
    exec::check_executable(path).map_err(|source| match source.kind() {
        io::ErrorKind::PermissionDenied => InspectError::NotExecutable(path.into()),
        _ => InspectError::Io { path: path.into(), source },
    })
}

/// Returns the rights that the kernel would grant beyond the caller's. A mount with `nosuid` grants
/// none. This is not checked, so a program there is not preloaded.
fn privilege_of(path: &Path) -> Option<Privilege> {
    privilege_for(path, megapage_kernel::effective_uid(), megapage_kernel::effective_gid())
}

/// Returns the rights that a process of user `uid` and group `gid` gets only by executing this
/// file.
pub fn privilege_for(path: &Path, uid: u32, gid: u32) -> Option<Privilege> {
    let metadata = fs::metadata(path).ok()?;
    let mode = metadata.permissions().mode();
    if mode & 0o4000 != 0 && metadata.uid() != uid {
        return Some(Privilege::SetUser(metadata.uid()));
    }
    // Without the group-execute bit, set-group-ID marks mandatory locking, not a program.
    if mode & 0o2010 == 0o2010 && metadata.gid() != gid {
        return Some(Privilege::SetGroup(metadata.gid()));
    }
    // root has every capability already.
    (uid != 0 && exec::has_file_capabilities(path).unwrap_or(false)).then_some(Privilege::Capabilities)
}
