//! The kernel's boot parameters for hugetlb pages, and where boot loaders keep them.
//!
//! Sources: Documentation/admin-guide/kernel-parameters.txt (hugepages, hugepagesz, hugetlb_cma); grub-mkconfig's
//! `/etc/default/grub.d` (Debian, Ubuntu); kernel-install(8) and the Boot Loader Specification.

use super::PersistError;
use super::files::{BACKUP_SUFFIX, Edit, listed, read};
use megapage_kernel::tree::Tree;
use megapage_units::{Bytes, PageSize};

use std::path::PathBuf;

/// Boot entries that are edited at most.
const MOST_ENTRIES: usize = 1000;
/// The parameters that are megapage's to set. `default_hugepagesz` is left alone.
const OURS: [&str; 3] = ["hugepagesz=", "hugepages=", "hugetlb_cma="];

/// Whose files hold the kernel's command line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loader {
    /// GRUB with `/etc/default/grub.d` (Debian, Ubuntu and their kin).
    Grub,
    /// systemd-boot: `/etc/kernel/cmdline` for kernels to come, the entries for those that are there.
    SystemdBoot,
}

/// The pages of one size at boot: of the machine, or of nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BootPool {
    /// The page size.
    pub size: PageSize,
    /// The value of `hugepages=`: `512`, or `0:100,1:300`.
    pub pages: String,
}

/// The parameters in the order that the kernel needs: each `hugepagesz=` before the `hugepages=` that it is for,
/// the largest size first, as a gigabyte in one piece is the hardest to find.
pub fn parameters(pools: &[BootPool], cma: Option<&str>) -> Vec<String> {
    let mut pools: Vec<&BootPool> = pools.iter().collect();
    pools.sort_by_key(|pool| std::cmp::Reverse(pool.size));
    let mut words: Vec<String> = cma.map(|cma| format!("hugetlb_cma={cma}")).into_iter().collect();
    for pool in pools {
        words.push(format!("hugepagesz={}", memparse(pool.size.bytes())));
        words.push(format!("hugepages={}", pool.pages));
    }
    words
}

/// As the kernel's memparse() reads it: `1G`, `2M`, `64K`.
pub fn memparse(bytes: Bytes) -> String {
    match bytes.0 {
        n if n.is_multiple_of(1 << 30) => format!("{}G", n >> 30),
        n if n.is_multiple_of(1 << 20) => format!("{}M", n >> 20),
        n => format!("{}K", n >> 10),
    }
}

/// Which loader the files below `root` belong to.
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

/// The edits that make `words` the hugetlb parameters of the next boot; without words, those that take megapage's
/// away.
pub fn edits(tree: &Tree, loader: Loader, words: &[String]) -> Result<Vec<Edit>, PersistError> {
    match loader {
        Loader::Grub => grub_edits(tree, words),
        Loader::SystemdBoot => systemd_boot_edits(tree, words),
    }
}

/// The file that GRUB's configuration reads after `/etc/default/grub`.
fn grub_edits(tree: &Tree, words: &[String]) -> Result<Vec<Edit>, PersistError> {
    let own = tree.root().join("etc/default/grub.d/60-megapage.cfg");
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
                .filter(|word| OURS.iter().any(|ours| ours.strip_suffix('=') == Some(word)));
            if let Some(word) = found.next() {
                return Err(PersistError::Foreign { word: word.to_string(), path });
            }
        }
    }
    let line = format!("GRUB_CMDLINE_LINUX=\"$GRUB_CMDLINE_LINUX {}\"\n", words.join(" "));
    Ok(vec![Edit::own(tree, own, (!words.is_empty()).then_some(line))?])
}

fn systemd_boot_edits(tree: &Tree, words: &[String]) -> Result<Vec<Edit>, PersistError> {
    let mut edits = Vec::new();
    let cmdline = tree.root().join("etc/kernel/cmdline");
    edits.extend(with_backup(tree, cmdline, words, |text, words| {
        let kept = text.split_whitespace().map(str::to_string);
        join(kept, words) + "\n"
    })?);
    for entry in entries(tree)? {
        edits.extend(with_backup(tree, entry, words, |text, words| {
            // Several `options` lines are one command line: the words go to the end of the last.
            let last =
                text.lines().enumerate().filter(|(_, line)| is_options(line)).last().map(|(index, _)| index);
            let mut lines: Vec<String> = text
                .lines()
                .enumerate()
                .map(|(index, line)| {
                    if !is_options(line) {
                        return line.to_string();
                    }
                    let kept = line.split_whitespace().map(str::to_string);
                    join(kept, if Some(index) == last { words } else { &[] })
                })
                .collect();
            if last.is_none() && !words.is_empty() {
                lines.push(format!("options {}", words.join(" ")));
            }
            // A line that held nothing but our words goes with them.
            lines.retain(|line| line.trim() != "options");
            lines.join("\n") + "\n"
        })?);
    }
    Ok(edits)
}

fn is_options(line: &str) -> bool {
    line.split_whitespace().next() == Some("options")
}

fn is_ours(word: &str) -> bool {
    OURS.iter().any(|ours| word.starts_with(ours))
}

fn join(kept: impl Iterator<Item = String>, words: &[String]) -> String {
    kept.filter(|word| !is_ours(word)).chain(words.iter().cloned()).collect::<Vec<_>>().join(" ")
}

/// Edits of a file that another program owns: a copy of what it held, and the file itself. That there is a copy is
/// also what says that the hugetlb words in the file are ours.
fn with_backup(
    tree: &Tree,
    path: PathBuf,
    words: &[String],
    change: impl Fn(&str, &[String]) -> String,
) -> Result<Vec<Edit>, PersistError> {
    let mut name = path.clone().into_os_string();
    name.push(BACKUP_SUFFIX);
    let mut backup = Edit::of(tree, PathBuf::from(name))?;
    let mut edit = Edit::of(tree, path)?;
    let Some(before) = edit.before.clone() else { return Ok(Vec::new()) };
    if backup.before.is_none() {
        if words.is_empty() {
            return Ok(Vec::new());
        }
        if let Some(word) = before.split_whitespace().find(|word| is_ours(word)) {
            return Err(PersistError::Foreign { word: word.to_string(), path: edit.path });
        }
        backup.after = Some(before.clone());
    }
    edit.after = Some(change(&before, words));
    if words.is_empty() {
        // Byte for byte what it was, unless another program has changed it since.
        let former = backup.before.clone();
        if former.as_deref().is_some_and(|former| {
            former.split_whitespace().eq(edit.after.iter().flat_map(|text| text.split_whitespace()))
        }) {
            edit.after = former;
        }
        backup.after = None;
        return Ok(vec![edit, backup]);
    }
    Ok(vec![backup, edit])
}

/// The boot entries, wherever the boot partition is mounted.
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
