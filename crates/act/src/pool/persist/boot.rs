//! Boot parameters of the kernel for hugetlb pages, and the boot loaders' files that hold them.
//!
//! Sources: Documentation/admin-guide/kernel-parameters.txt (hugepages, hugepagesz,
//! default_hugepagesz, hugetlb_cma, transparent_hugepage); grub-mkconfig's `/etc/default/grub.d`
//! (Debian, Ubuntu); kernel-install(8) and the Boot Loader Specification.

use super::PersistError;
use super::files::{BACKUP_SUFFIX, Edit, MARKER, listed, read};
use megapage_kernel::tree::Tree;
use megapage_units::{Bytes, PageSize};

use std::path::{Path, PathBuf};

/// Most boot entries that are edited.
const MOST_ENTRIES: usize = 1000;
/// Parameters that are megapage's to set wherever it sets a pool.
const OURS: [&str; 3] = ["hugepagesz=", "hugepages=", "hugetlb_cma="];
/// Parameters that it sets on request alone. Those that others set stay, so [`RECORD`] says which
/// are ours.
const ON_REQUEST: [&str; 2] = [DEFAULT_SIZE, "transparent_hugepage="];
const DEFAULT_SIZE: &str = "default_hugepagesz=";
/// File that GRUB's configuration reads after `/etc/default/grub`.
const GRUB: &str = "etc/default/grub.d/60-megapage.cfg";
/// File of systemd-boot with the words among [`ON_REQUEST`] that megapage has put into the command
/// lines.
const RECORD: &str = "etc/kernel/megapage.words";

/// Boot loader whose files hold the kernel's command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loader {
    /// GRUB with `/etc/default/grub.d` (Debian, Ubuntu and their kin).
    Grub,
    /// systemd-boot: `/etc/kernel/cmdline` for later kernels, the entries for those that are
    /// installed.
    SystemdBoot,
}

/// Pages of one size at boot: of the machine, or of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootPool {
    /// The page size.
    pub size: PageSize,
    /// The value of `hugepages=`: `512`, or `0:100,1:300`.
    pub pages: String,
}

/// Returns the parameters in the order that the kernel needs: each `hugepagesz=` before its
/// `hugepages=`. The largest size comes first: a gigabyte in one piece is the hardest to find.
/// `thp`: always, madvise or never.
pub fn parameters(
    pools: &[BootPool],
    cma: Option<&str>,
    default_size: Option<PageSize>,
    thp: Option<&str>,
) -> Vec<String> {
    let mut pools: Vec<&BootPool> = pools.iter().collect();
    pools.sort_by_key(|pool| std::cmp::Reverse(pool.size));
    let mut words: Vec<String> = thp.map(|word| format!("transparent_hugepage={word}")).into_iter().collect();
    words.extend(cma.map(|cma| format!("hugetlb_cma={cma}")));
    words.extend(default_size.map(|size| format!("{DEFAULT_SIZE}{}", memparse(size.bytes()))));
    for pool in pools {
        words.push(format!("hugepagesz={}", memparse(pool.size.bytes())));
        words.push(format!("hugepages={}", pool.pages));
    }
    words
}

/// Returns the size as the kernel's memparse() reads it: `1G`, `2M`, `64K`.
pub fn memparse(bytes: Bytes) -> String {
    match bytes.0 {
        n if n.is_multiple_of(1 << 30) => format!("{}G", n >> 30),
        n if n.is_multiple_of(1 << 20) => format!("{}M", n >> 20),
        n => format!("{}K", n >> 10),
    }
}

/// Returns the loader to which the files of `tree` belong.
pub fn detect(tree: &Tree, words: &[String]) -> Result<Loader, PersistError> {
    let grub = read(tree, &tree.root().join("etc/default/grub"))?;
    if let Some(text) = &grub {
        let bls =
            |line: &str| line.trim().trim_start_matches("export ").starts_with("GRUB_ENABLE_BLSCFG=true");
        if text.lines().any(bls) {
            return Err(PersistError::Grubby(words.join(" ")));
        }
    }
    if grub.is_some() || tree.is_directory(&tree.root().join("etc/default/grub.d")) {
        return Ok(Loader::Grub);
    }
    if read(tree, &tree.root().join("etc/kernel/cmdline"))?.is_some() || !entries(tree)?.is_empty() {
        return Ok(Loader::SystemdBoot);
    }
    Err(PersistError::NoLoader { root: tree.root().to_path_buf(), words: words.join(" ") })
}

/// Returns the edits that make `words` the hugetlb parameters of the next boot; without words,
/// those that remove megapage's.
pub fn edits(tree: &Tree, loader: Loader, words: &[String]) -> Result<Vec<Edit>, PersistError> {
    match loader {
        Loader::Grub => grub_edits(tree, words),
        Loader::SystemdBoot => systemd_boot_edits(tree, words),
    }
}

/// Returns true if an earlier call has set the default page size.
pub fn keeps_default_size(tree: &Tree) -> Result<bool, PersistError> {
    let grub =
        read(tree, &tree.root().join(GRUB))?.filter(|text| text.starts_with(MARKER)).unwrap_or_default();
    let mut words = grub.split(['"', ' ']).map(str::to_string).chain(recorded(tree)?);
    Ok(words.any(|word| word.starts_with(DEFAULT_SIZE)))
}

/// Returns the words on request that an earlier call has put into systemd-boot's command lines.
fn recorded(tree: &Tree) -> Result<Vec<String>, PersistError> {
    let text =
        read(tree, &tree.root().join(RECORD))?.filter(|text| text.starts_with(MARKER)).unwrap_or_default();
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    Ok(lines.flat_map(str::split_whitespace).map(str::to_string).collect())
}

/// Returns the parameter of a word: `hugepages=` of `hugepages=512`.
fn kind(word: &str) -> &str {
    word.find('=').map_or(word, |at| &word[..=at])
}

/// Returns the parameters that nothing else may set once `words` are set.
fn exclusive(words: &[String]) -> impl Iterator<Item = &'static str> + '_ {
    let requested = ON_REQUEST.into_iter().filter(|own| words.iter().any(|word| kind(word) == *own));
    OURS.into_iter().chain(requested)
}

fn grub_edits(tree: &Tree, words: &[String]) -> Result<Vec<Edit>, PersistError> {
    let own = tree.root().join(GRUB);
    if !words.is_empty() {
        let mut others = vec![tree.root().join("etc/default/grub")];
        others.extend(
            listed(tree, &tree.root().join("etc/default/grub.d"), "cfg")?
                .into_iter()
                .filter(|path| *path != own),
        );
        for path in others {
            let text = read(tree, &path)?.unwrap_or_default();
            let lines = text.lines().filter(|line| !line.trim_start().starts_with('#'));
            let mut found = lines
                .flat_map(|line| line.split(['"', '\'', ' ', '=']))
                .filter(|word| exclusive(words).any(|ours| ours.strip_suffix('=') == Some(word)));
            if let Some(word) = found.next() {
                return Err(PersistError::Foreign { word: word.to_string(), path });
            }
        }
    }
    let line = format!("GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX {}\"\n", words.join(" "));
    Ok(vec![Edit::own(tree, own, (!words.is_empty()).then_some(line))?])
}

fn systemd_boot_edits(tree: &Tree, words: &[String]) -> Result<Vec<Edit>, PersistError> {
    let cmdline = tree.root().join("etc/kernel/cmdline");
    let recorded = recorded(tree)?;
    let inherited = match read(tree, &backup_of(&cmdline))? {
        None => Vec::new(),
        Some(_) => {
            let text = read(tree, &cmdline)?.unwrap_or_default();
            text.split_whitespace().filter(|word| is_ours(word, &recorded)).map(str::to_string).collect()
        }
    };
    let ours = Ours { recorded, inherited };
    let on_request: Vec<&str> =
        words.iter().map(String::as_str).filter(|word| ON_REQUEST.contains(&kind(word))).collect();
    let record = (!on_request.is_empty()).then(|| on_request.join(" ") + "\n");
    let mut edits = vec![Edit::own(tree, tree.root().join(RECORD), record)?];
    edits.extend(with_backup(tree, cmdline, words, &ours, |text, words| {
        join(text, &ours.recorded, words) + "\n"
    })?);
    for entry in entries(tree)? {
        edits.extend(with_backup(tree, entry, words, &ours, |text, words| {
            // Several `options` lines form one command line: the words go to the end of the last.
            let last =
                text.lines().enumerate().filter(|(_, line)| is_options(line)).last().map(|(index, _)| index);
            let mut lines: Vec<String> = text
                .lines()
                .enumerate()
                .map(|(index, line)| {
                    if !is_options(line) {
                        return line.to_string();
                    }
                    join(line, &ours.recorded, if Some(index) == last { words } else { &[] })
                })
                .collect();
            if last.is_none() && !words.is_empty() {
                lines.push(format!("options {}", words.join(" ")));
            }
            // A line that held only our words is removed with them.
            lines.retain(|line| line.trim() != "options");
            lines.join("\n") + "\n"
        })?);
    }
    Ok(edits)
}

fn is_options(line: &str) -> bool {
    line.split_whitespace().next() == Some("options")
}

/// Returns true if an earlier call has put this word into a file that has a copy of its former
/// text.
fn is_ours(word: &str, recorded: &[String]) -> bool {
    OURS.contains(&kind(word)) || recorded.iter().any(|ours| ours == word)
}

/// Returns the command line without our former words, and with the new ones at its end.
fn join(line: &str, recorded: &[String], words: &[String]) -> String {
    let others = line.split_whitespace().filter(|word| !is_ours(word, recorded));
    others.chain(words.iter().map(String::as_str)).collect::<Vec<_>>().join(" ")
}

/// Words that earlier calls have put into command lines.
struct Ours {
    /// The words on request.
    recorded: Vec<String>,
    /// All words of ours in /etc/kernel/cmdline, which kernel-install(8) copies into the entries of
    /// new kernels.
    inherited: Vec<String>,
}

fn backup_of(path: &Path) -> PathBuf {
    let mut name = path.to_path_buf().into_os_string();
    name.push(BACKUP_SUFFIX);
    PathBuf::from(name)
}

/// Returns the edits of a file that another program owns: a copy of its former text, and the file
/// itself. If there is a copy, the hugetlb words in the file are ours; for words on request, the
/// record says so. An entry that was made since, with our words in it, has no copy and gets none.
fn with_backup(
    tree: &Tree,
    path: PathBuf,
    words: &[String],
    ours: &Ours,
    change: impl Fn(&str, &[String]) -> String,
) -> Result<Vec<Edit>, PersistError> {
    let mut backup = Edit::of(tree, backup_of(&path))?;
    let mut edit = Edit::of(tree, path)?;
    let Some(before) = edit.before.clone() else { return Ok(Vec::new()) };
    let has_copy = backup.before.is_some();
    let is_inherited = |word: &str| ours.inherited.iter().any(|inherited| inherited == word);
    let inherits = !has_copy && before.split_whitespace().any(is_inherited);
    if words.is_empty() && !has_copy && !inherits {
        return Ok(Vec::new());
    }
    let is_foreign = |word: &&str| {
        let known = if has_copy { is_ours(word, &ours.recorded) } else { is_inherited(word) };
        !known && exclusive(words).any(|own| own == kind(word))
    };
    if !words.is_empty()
        && let Some(word) = before.split_whitespace().find(is_foreign)
    {
        return Err(PersistError::Foreign { word: word.to_string(), path: edit.path });
    }
    edit.after = Some(change(&before, words));
    if inherits {
        return Ok(vec![edit]);
    }
    if !words.is_empty() {
        if !has_copy {
            backup.after = Some(before);
        }
        return Ok(vec![backup, edit]);
    }
    // The former text byte for byte, unless another program has changed the file since.
    let former = backup.before.clone().filter(|former| change(former, &[]) == change(&before, &[]));
    edit.after = former.or(edit.after);
    backup.after = None;
    Ok(vec![edit, backup])
}

/// Returns the boot entries, wherever the boot partition is mounted.
fn entries(tree: &Tree) -> Result<Vec<PathBuf>, PersistError> {
    let mut found = Vec::new();
    for directory in ["boot/loader/entries", "efi/loader/entries", "boot/efi/loader/entries"] {
        found.extend(listed(tree, &tree.root().join(directory), "conf")?);
    }
    if found.len() > MOST_ENTRIES {
        return Err(PersistError::TooManyEntries(found.len()));
    }
    Ok(found)
}
