//! A program's text on huge pages: the means for each file, the reason, and the result.
//!
//! The choice ([`choose`]) is pure; [`files`] gathers its facts.

mod report;

pub(crate) use self::report::TextPieces;
pub use self::report::{TextFileReport, TextReport};
use crate::machine::Machine;
use crate::mechanism::{Refusal, preloadable};
use crate::program::{Program, Runtime};
use crate::request::{Text, TextRequest};
use megapage_kernel::KernelRoot;
use megapage_remap::Placement;
use megapage_remap::check::{Check, check};
use megapage_remap::layout::whole_pages;
use megapage_remap::ledger::{OBJECTS_VARIABLE, PAGES_VARIABLE, REQUIRE_VARIABLE, TextLedger, pages_for};
use megapage_remap::prime::prime;
use megapage_units::shown::shell_path;
use megapage_units::{BASE_PAGE, Bytes, HUGE_1G, VirtRange};
use serde::Serialize;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

megapage_units::named! {
    /// A way to bring a file's segments onto huge pages.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "lowercase")]
    pub enum TextMechanism {
        /// The file is primed: its own pages lie in huge folios.
        File = "file",
        /// A preloaded library moves the segments onto transparent huge pages.
        Thp = "thp",
        /// A preloaded library moves the segments onto hugetlb pages.
        #[serde(rename = "2m")]
        Huge2M = "2m",
        /// As `Huge2M`, but whole GiB of a segment get pages of 1 GiB.
        #[serde(rename = "1g")]
        Huge1G = "1g",
    }
}

/// One file: the program, or a library.
#[derive(Clone, Debug)]
pub struct TextFile {
    /// Its path, without symbolic links.
    pub path: PathBuf,
    /// The file name by which the loader opens it, which may be a link's.
    pub loaded_as: String,
    /// True for the program, false for a library.
    pub is_program: bool,
    /// True if the program is started with it; otherwise it loads it later (dlopen(3)).
    pub at_start: bool,
    /// The facts in its headers.
    pub check: Check,
}

impl TextFile {
    /// Returns the bytes of its LOAD segments in memory, in whole base pages.
    fn bytes(&self) -> u64 {
        let bytes = |it: &megapage_remap::check::SegmentCheck| {
            let start = it.segment.address & !(BASE_PAGE as u64 - 1);
            (it.segment.address + it.segment.memory_size).next_multiple_of(BASE_PAGE as u64) - start
        };
        self.check.segments.iter().map(bytes).sum()
    }

    /// Returns the bytes of read-only segments in whole blocks of 2 MiB, for which hugetlb pages
    /// are needed.
    fn read_only(&self) -> u64 {
        let read_only = self.check.segments.iter().filter(|it| !it.segment.write);
        read_only.map(|it| it.anonymous_bytes).sum()
    }

    /// Returns the bytes of read-only segments in whole GiB, at least, which can have pages of 1
    /// GiB.
    fn read_only_1g(&self) -> u64 {
        let aligned = self.check.segments.iter().any(|it| it.segment.align >= HUGE_1G as u64);
        let placed = self.check.placement == Placement::Fixed || aligned;
        let read_only = self.check.segments.iter().filter(|it| !it.segment.write);
        read_only.map(|it| whole_pages(&it.segment, placed, HUGE_1G as u64)).sum()
    }

    /// Returns the bytes that are copied into private memory; with hugetlb pages, only those of
    /// data.
    fn copied(&self, asked: Text) -> u64 {
        let segments = self.check.segments.iter().filter(|it| !asked.is_hugetlb() || it.segment.write);
        segments.map(|it| it.anonymous_bytes.min(it.segment.file_size)).sum()
    }

    /// Returns its name for the preloaded library.
    fn object(&self) -> String {
        if self.is_program { ".".into() } else { self.loaded_as.clone() }
    }
}

/// A file with the decision.
#[derive(Clone, Debug)]
pub struct PlannedFile {
    /// The file.
    pub file: TextFile,
    /// The means; `None`: not moved or primed.
    pub mechanism: Option<TextMechanism>,
    /// The reason for that.
    pub reason: String,
    /// True if there is something to gain: it holds a whole block of 2 MiB.
    pub gains: bool,
    /// The reason why the preloaded library cannot move it, as an error.
    own: Result<(), String>,
    /// Bytes that priming could have and had in huge folios, and the reason for a difference.
    primed: Option<(u64, u64, Option<String>)>,
}

/// The plan for the text of a run.
#[derive(Clone, Debug)]
pub struct TextPlan {
    /// The request.
    pub asked: Text,
    /// The files.
    pub files: Vec<PlannedFile>,
    /// The library that moves segments.
    library: Option<PathBuf>,
}

/// Libraries that hold the code of a runtime, by the start of their names.
const RUNTIME_LIBRARIES: [&str; 3] = ["libjvm.so", "libpython", "libnode.so"];

/// Gathers the files: the program, the requested libraries, and the library with its runtime's
/// code.
pub fn files(root: &KernelRoot, program: &Program, request: &TextRequest) -> Result<Vec<TextFile>, Refusal> {
    let name_of = |path: &Path| path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut paths = vec![(program.executable.clone(), true, true)];
    for library in &program.libraries {
        if RUNTIME_LIBRARIES.iter().any(|start| name_of(library).starts_with(start)) {
            paths.push((library.clone(), false, true));
        }
    }
    if program.runtime == Some(Runtime::Jvm)
        && let Some(jvm) = beside(&program.executable, RUNTIME_LIBRARIES[0])
    {
        paths.push((jvm, false, false));
    }
    for asked in &request.libraries {
        // The request names the library as the loader opens it (the soname, a link), or the file
        // behind that.
        let real = |path: &Path| std::fs::canonicalize(path).ok();
        let (wanted, file) = (name_of(Path::new(asked)), real(Path::new(asked)));
        let is_asked = |path: &&PathBuf| {
            name_of(path) == wanted
                || real(path).is_some_and(|real| {
                    if asked.contains('/') { Some(&real) == file.as_ref() } else { name_of(&real) == wanted }
                })
        };
        let needed = program.libraries.iter().find(is_asked);
        let found = match needed {
            Some(path) => Some((path.clone(), false, true)),
            None if asked.contains('/') => Some((asked.into(), false, false)),
            None => beside(&program.executable, asked).map(|path| (path, false, false)),
        };
        paths.push(found.ok_or_else(|| {
            Refusal::TextLibrary(format!(
                "{asked}: no such library among those that {} is started with; one that it loads later is named by \
                 its path",
                program.executable.display()
            ))
        })?);
    }
    let mut files: Vec<TextFile> = Vec::new();
    for (path, is_program, at_start) in paths {
        let refused = |what: String| Refusal::TextLibrary(what);
        let loaded_as = name_of(&path);
        if loaded_as.contains(':') {
            return Err(refused(format!("{}: a name with a colon cannot be passed on", path.display())));
        }
        let path =
            std::fs::canonicalize(&path).map_err(|error| refused(format!("{}: {error}", path.display())))?;
        if files.iter().any(|file| file.path == path) {
            continue;
        }
        let check = match check(root, &path) {
            Ok(check) => check,
            // A 32-bit program runs unchanged: it has no file in the plan, which then says so.
            Err(_) if is_program => continue,
            Err(error) => return Err(refused(error.to_string())),
        };
        files.push(TextFile { path, loaded_as, is_program, at_start, check });
    }
    Ok(files)
}

/// Finds a library of a runtime that is installed around its executable, as the JDK is.
fn beside(executable: &Path, name: &str) -> Option<PathBuf> {
    let directory = std::fs::canonicalize(executable).ok()?.parent()?.to_path_buf();
    let places = ["../lib/server", "../lib"].map(|place| directory.join(place).join(name));
    places.into_iter().find(|path| path.is_file())
}

/// Decides for each file. Fails if `require` is set and the request cannot be met.
pub fn choose(
    files: Vec<TextFile>,
    program: &Program,
    machine: &Machine,
    asked: Text,
    require: bool,
) -> Result<TextPlan, Refusal> {
    let pages: u64 = files.iter().map(TextFile::read_only).sum();
    let whole: u64 = files.iter().map(TextFile::read_only_1g).sum();
    let copied: u64 = files.iter().filter(|file| file.at_start).map(|file| file.copied(asked)).sum();
    let reach = reach(program, machine, asked, (pages, whole)).and_then(|()| room(machine, copied));
    let data =
        |file: &TextFile| file.check.segments.iter().any(|it| it.segment.write && it.anonymous_bytes > 0);
    let lacks_1g = lacks_1g(whole, machine);
    if require
        && asked == Text::Huge1G
        && let Some(why) = &lacks_1g
    {
        return Err(Refusal::Unobtainable(format!("--text 1g: {why}")));
    }
    if require && asked.is_hugetlb() && machine.collapse_off && files.iter().any(data) {
        return Err(Refusal::Unobtainable(format!(
            "--text {}: prctl(PR_SET_THP_DISABLE) is in force, and data goes to transparent huge pages",
            asked.name()
        )));
    }
    let decide = |file| decide(file, asked, &reach, lacks_1g.as_deref());
    let files: Vec<PlannedFile> = files.into_iter().map(decide).collect();
    let missing = files.iter().find(|file| file.gains && file.mechanism.is_none());
    let why = match (missing, files.iter().any(|file| file.mechanism.is_some())) {
        (Some(file), _) => Some(format!("{}: {}", file.file.path.display(), file.reason)),
        (None, true) => None,
        (None, false) => Some(files.first().map_or_else(
            || format!("{}: not a 64-bit ELF program", program.executable.display()),
            |file| format!("{}: {}", file.file.path.display(), file.reason),
        )),
    };
    if let Some(why) = why.filter(|_| require) {
        return Err(Refusal::Unobtainable(format!("--text {}: {why}", asked.name())));
    }
    Ok(TextPlan { asked, files, library: machine.text_library.clone().ok() })
}

/// Returns the library, or the reason why this program's loader cannot load it.
pub(crate) fn loadable(program: &Program, machine: &Machine) -> Result<PathBuf, String> {
    let library = machine.text_library.clone()?;
    preloadable(program, machine)?;
    Ok(library)
}

/// Checks that the preloaded library can reach this program and move its segments here. `pages` is
/// the bytes of text in whole blocks of 2 MiB, and those of them in whole GiB.
fn reach(program: &Program, machine: &Machine, asked: Text, pages: (u64, u64)) -> Result<(), String> {
    loadable(program, machine)?;
    if let Some(why) = (machine.text_refused)() {
        return Err(why);
    }
    if !asked.is_hugetlb() && machine.collapse_off {
        return Err("prctl(PR_SET_THP_DISABLE) is in force, and the program inherits it".into());
    }
    // Either all whole GiB get pages of 1 GiB, or all text gets pages of 2 MiB.
    let of_1g = if asked == Text::Huge1G && machine.pool_1g.0 >= pages.1 { pages.1 } else { 0 };
    let pages = pages.0.saturating_sub(of_1g);
    if asked.is_hugetlb() && machine.pool_2m.0 < pages {
        return Err(format!(
            "the pool of 2m pages has {} available, and {} are needed: megapage pool set 2m=N makes some",
            machine.pool_2m,
            Bytes(pages)
        ));
    }
    Ok(())
}

/// Returns the reason why text does not get all requested pages of 1 GiB; `None` if it does.
/// `whole` is its bytes in whole GiB.
fn lacks_1g(whole: u64, machine: &Machine) -> Option<String> {
    if whole == 0 {
        return Some("no segment holds a whole GiB".into());
    }
    (machine.pool_1g.0 < whole).then(|| {
        format!(
            "the pool of 1g pages has {} available, and {} are needed: megapage pool set 1g=N makes some",
            machine.pool_1g,
            Bytes(whole)
        )
    })
}

/// Checks that control groups leave room for `copied` bytes, and a quarter more for the program. A
/// file's text is evicted under a limit, but a copy is not.
fn room(machine: &Machine, copied: u64) -> Result<(), String> {
    match machine.memory_room {
        Some(room) if copied > 0 && room.0 < copied + copied / 4 => Err(format!(
            "the memory limit of its control group leaves {room}, and the copy takes {}",
            Bytes(copied)
        )),
        _ => Ok(()),
    }
}

/// Decides for one file. `lacks_1g` is the reason for pages of 2 MiB in place of 1 GiB.
fn decide(file: TextFile, asked: Text, reach: &Result<(), String>, lacks_1g: Option<&str>) -> PlannedFile {
    let check = &file.check;
    let primable = match (check.prime_bytes, check.anonymous_bytes) {
        (0, 0) => Err("no part of the file can be mapped by 2 MiB entries".to_string()),
        (0, _) => Err("the file is not laid out for 2 MiB: --text thp moves its segments".into()),
        (bytes, _) => Ok(bytes),
    };
    let own = match (reach, file.at_start, check.anonymous_bytes) {
        (_, _, 0) => Err("it holds no whole block of 2 MiB".to_string()),
        (Err(why), _, _) => Err(why.clone()),
        (Ok(()), false, _) => Err("the program loads it later, where only --text file reaches it".into()),
        (Ok(()), true, _) => Ok(()),
    };
    let by_file =
        |bytes: &u64| format!("{} of the file can lie in huge folios, shared by all", Bytes(*bytes));
    let moved = |pages: &str| format!("its segments are moved onto {pages} before main");
    let thp = || moved("transparent huge pages");
    let (mechanism, reason) = match (asked, &primable, &own) {
        (Text::None, _, _) => (None, "nothing is asked".into()),
        (Text::File, Ok(bytes), _) => (Some(TextMechanism::File), by_file(bytes)),
        (Text::File, Err(why), _) => (None, why.clone()),
        (Text::Thp, _, Ok(())) => (Some(TextMechanism::Thp), thp()),
        (Text::Huge2M, _, Ok(())) => (Some(TextMechanism::Huge2M), moved("hugetlb pages")),
        (Text::Huge1G, _, Ok(())) => match lacks_1g {
            None if file.read_only_1g() > 0 => {
                (Some(TextMechanism::Huge1G), moved("hugetlb pages, of 1 GiB where it holds whole GiB,"))
            }
            None => {
                (Some(TextMechanism::Huge2M), moved("hugetlb pages of 2 MiB, for it holds no whole GiB,"))
            }
            Some(why) => (Some(TextMechanism::Huge2M), format!("{}: {why}", moved("hugetlb pages of 2 MiB"))),
        },
        (Text::Thp | Text::Huge2M | Text::Huge1G, _, Err(why)) => (None, why.clone()),
        // Shared pages are better than private ones, unless they are much fewer.
        (Text::Auto, Ok(bytes), own) if own.is_err() || 2 * bytes >= file.read_only() => {
            (Some(TextMechanism::File), by_file(bytes))
        }
        (Text::Auto, _, Ok(())) => (Some(TextMechanism::Thp), thp()),
        (Text::Auto, Err(file), Err(own)) => (None, format!("{file}; and {own}")),
        (Text::Auto, Ok(_), Err(_)) => unreachable!("taken by the file's own pages above"),
    };
    let gains = check.anonymous_bytes > 0 || check.prime_bytes > 0;
    PlannedFile { file, mechanism, reason, gains, own, primed: None }
}

impl TextPlan {
    /// Returns the files with a mechanism that `wanted` accepts.
    fn by(&self, wanted: impl Fn(TextMechanism) -> bool) -> impl Iterator<Item = &PlannedFile> {
        self.files.iter().filter(move |file| file.mechanism.is_some_and(&wanted))
    }

    /// Returns true if the preloaded library has segments to move.
    pub fn moves(&self) -> bool {
        self.by(|mechanism| mechanism != TextMechanism::File).next().is_some()
    }

    /// Returns the base pages of the ledger, in which the preloaded library records the result for
    /// each segment.
    pub fn ledger_pages(&self) -> usize {
        let moved = self.by(|mechanism| mechanism != TextMechanism::File);
        pages_for(moved.map(|it| it.file.check.segments.len()).sum())
    }

    /// Primes the files with that mechanism. With `auto`, a file that is not wholly on huge pages
    /// then is moved instead, if that is possible.
    pub fn prime(&mut self, root: &KernelRoot, require: bool) -> Result<(), Refusal> {
        for file in self.files.iter_mut().filter(|file| file.mechanism == Some(TextMechanism::File)) {
            let (possible, obtained, missing) = match prime(root, &file.file.path, false) {
                Ok(outcome) => {
                    (outcome.possible_bytes, outcome.obtained_bytes.unwrap_or(0), outcome.missing.clone())
                }
                Err(error) => (file.file.check.prime_bytes, 0, Some(error.to_string())),
            };
            file.primed = Some((possible, obtained, missing.clone()));
            let Some(why) = missing else { continue };
            if self.asked == Text::Auto && file.own.is_ok() {
                file.mechanism = Some(TextMechanism::Thp);
                file.reason = format!(
                    "its segments are moved onto transparent huge pages before main, for only {} of {} of the file \
                     lie in huge folios: {why}",
                    Bytes(obtained),
                    Bytes(possible)
                );
                file.primed = None;
            } else if require {
                let path = file.file.path.display();
                let asked = self.asked.name();
                return Err(Refusal::Unobtainable(format!("--text {asked}: {path}: {why}")));
            }
        }
        Ok(())
    }

    /// Returns the library to preload and its variables, without that of the ledger; `None` if
    /// nothing is moved.
    pub fn environment(&self, require: bool) -> Option<(&Path, Vec<(&'static str, OsString)>)> {
        let library = self.library.as_deref().filter(|_| self.moves())?;
        let objects: Vec<String> =
            self.by(|mechanism| mechanism != TextMechanism::File).map(|it| it.file.object()).collect();
        let has = |wanted: TextMechanism| self.by(|mechanism| mechanism == wanted).next().is_some();
        let kinds = [TextMechanism::Huge1G, TextMechanism::Huge2M];
        let pages = kinds.into_iter().find(|kind| has(*kind)).unwrap_or(TextMechanism::Thp);
        let mut variables: Vec<(&'static str, OsString)> =
            vec![(PAGES_VARIABLE, pages.name().into()), (OBJECTS_VARIABLE, objects.join(":").into())];
        if require {
            variables.push((REQUIRE_VARIABLE, "1".into()));
        }
        Some((library, variables))
    }

    /// Returns the plan as shell lines: the reasons as comments, and the commands that prime the
    /// files.
    pub fn dry_run(&self) -> Vec<String> {
        let mut lines = Vec::new();
        for file in &self.files {
            let mechanism = file.mechanism.map_or("not used", TextMechanism::name);
            lines.push(format!("# text of {}: {mechanism}: {}", file.file.path.display(), file.reason));
            if file.mechanism == Some(TextMechanism::File) {
                let path = shell_path(&file.file.path);
                lines.push(format!("megapage remap prime {path}"));
            }
        }
        lines
    }

    /// Returns the file name of the library that moves segments, if it has any to move.
    pub fn library_name(&self) -> Option<String> {
        let library = self.library.as_deref().filter(|_| self.moves())?;
        Some(library.file_name()?.to_string_lossy().into_owned())
    }

    /// Returns the files whose mappings are text.
    pub fn paths(&self) -> Vec<String> {
        self.files.iter().map(|file| file.file.path.to_string_lossy().into_owned()).collect()
    }
}

/// Returns the address ranges that the preloaded library has examined.
pub fn ranges(ledger: &TextLedger) -> Vec<VirtRange> {
    ledger.entries().iter().filter_map(|entry| VirtRange::new(entry.start, entry.end)).collect()
}
