//! Origin of a process: the program and arguments that it was started from. It is read before the
//! process is observed, since it is unknown once the process has ended.

use megapage_kernel::KernelRoot;
use megapage_kernel::process::{read_cmdline, read_cwd, read_exe};
use megapage_launch::program::Program;
use megapage_units::Pid;
use std::path::{Path, PathBuf};

/// Program, arguments and directory that a process was started from.
pub(crate) struct Origin {
    /// Its arguments, the program first; only the program if it has written a title over them.
    pub(crate) command: Vec<String>,
    /// True if it has written a title over its arguments.
    pub(crate) retitled: bool,
    /// Its working directory, if that is not the caller's.
    pub(crate) directory: Option<String>,
    /// Its program, or the reason why that is unknown.
    pub(crate) program: Result<Program, String>,
}

impl Origin {
    pub(crate) fn of(root: &KernelRoot, pid: Pid) -> Origin {
        let exe = read_exe(root, pid).map_err(|error| error.to_string());
        let program = exe.clone().and_then(|path| Program::inspect(&path).map_err(|error| error.to_string()));
        let mut command = read_cmdline(root, pid).unwrap_or_default();
        let retitled = is_title(&command, exe.as_deref().ok());
        if retitled {
            let name = exe.map(|exe| name_of(&exe, &command[0]).display().to_string());
            // A title is no command: without the program's file there is no command.
            command = name.into_iter().collect();
        }
        let own = std::env::current_dir().ok();
        let directory = read_cwd(root, pid).ok().filter(|directory| Some(directory) != own.as_ref());
        Origin { command, retitled, directory: directory.map(|it| it.display().to_string()), program }
    }
}

/// Returns true if these are not arguments but a title. Redis, postgres, nginx and sshd write a
/// title over their arguments. It leaves blanks in the first word, or empty words up to the end of
/// the arguments.
fn is_title(command: &[String], exe: Option<&Path>) -> bool {
    let Some(first) = command.first() else { return false };
    // The file's name itself holds blanks.
    if exe == Some(Path::new(first)) {
        return false;
    }
    first.contains(' ') || first.ends_with(':') || command.ends_with(&[String::new(), String::new()])
}

/// Returns the name by which to start `exe`. One file may be several programs, and act by its name
/// (redis-server is a link to redis-check-rdb in Debian). The title mostly begins with that name.
fn name_of(exe: &Path, title: &str) -> PathBuf {
    let name = title.split([' ', ':']).next().unwrap_or_default();
    let link = match name.starts_with('/') {
        true => PathBuf::from(name),
        false => exe.with_file_name(name),
    };
    match (link.canonicalize(), exe.canonicalize()) {
        (Ok(one), Ok(other)) if one == other => link,
        _ => exe.to_path_buf(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &[&str]) -> Vec<String> {
        text.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn titles_are_distinguished_from_arguments() {
        let exe = Some(Path::new("/usr/bin/program"));
        for title in [
            &["redis-server *:7391", "", "", ""][..],
            &["nginx: master process /usr/sbin/nginx"],
            &["postgres:", ""],
            &["title", "", ""],
        ] {
            assert!(is_title(&words(title), exe), "{title:?}");
        }
        for arguments in [&["python3", "two words"][..], &["grep", ""], &[]] {
            assert!(!is_title(&words(arguments), exe), "{arguments:?}");
        }
        let blank = "/opt/My Program/run";
        assert!(!is_title(&words(&[blank]), Some(Path::new(blank))));
    }

    #[test]
    fn a_program_of_many_names_is_started_by_the_one_it_had() {
        let directory = tempfile::tempdir().unwrap();
        let exe = directory.path().join("redis-check-rdb");
        std::fs::write(&exe, "").unwrap();
        let link = directory.path().join("redis-server");
        std::os::unix::fs::symlink(&exe, &link).unwrap();
        assert_eq!(name_of(&exe, "redis-server *:7391"), link);
        assert_eq!(name_of(&exe, "unknown: worker"), exe);
    }
}
