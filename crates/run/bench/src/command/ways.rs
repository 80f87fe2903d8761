//! The ways in which a user's command is run.

use crate::libraries::{JEMALLOC, Library, MIMALLOC_3, TCMALLOC};
use anyhow::{Context, Result, bail};
use megapage_units::shown::shell_word;
use std::env;
use std::ffi::OsString;
use std::path::Path;
use std::process::Command;

/// The starter of the command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum By {
    /// None: the command runs as it is.
    Itself,
    /// By `megapage run` with these options.
    Run(&'static [&'static str]),
    /// With this library preloaded.
    Library(Library),
}

/// One way to run a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Way {
    /// Name on the command line and in every table.
    pub name: &'static str,
    /// A description in a few words.
    pub what: &'static str,
    pub(super) by: By,
    /// An environment variable, and the value that is put into it.
    variable: Option<(&'static str, &'static str)>,
}

/// Name of the way that all others are compared with.
pub const PLAIN: &str = "plain";

const fn way(name: &'static str, what: &'static str, by: By) -> Way {
    Way { name, what, by, variable: None }
}

/// All ways, in the order of the table.
pub const WAYS: [Way; 7] = [
    way(PLAIN, "the command as it is", By::Itself),
    Way {
        variable: Some(("GLIBC_TUNABLES", "glibc.malloc.hugetlb=1")),
        ..way("tunable", "glibc's own malloc on transparent huge pages", By::Itself)
    },
    way("ours", "megapage run", By::Run(&[])),
    way("thp", "megapage run without hugetlb pages", By::Run(&["--heap", "thp"])),
    Way {
        variable: Some(("MIMALLOC_ALLOW_LARGE_OS_PAGES", "1")),
        ..way("mimalloc", "mimalloc 3, large pages allowed", By::Library(MIMALLOC_3))
    },
    Way {
        variable: Some(("MALLOC_CONF", "thp:always,metadata_thp:auto")),
        ..way("jemalloc", "jemalloc 5, THP always", By::Library(JEMALLOC))
    },
    way("tcmalloc", "gperftools' tcmalloc", By::Library(TCMALLOC)),
];

impl Way {
    /// Returns the ways with these names and the plain one, in the table's order.
    pub fn select(names: &[String]) -> Result<Vec<Way>> {
        if let Some(unknown) = names.iter().find(|name| WAYS.iter().all(|way| way.name != **name)) {
            bail!("'{unknown}' is no way; the ways are {}", WAYS.map(|way| way.name).join(", "));
        }
        let chosen = |way: &Way| way.name == PLAIN || names.iter().any(|name| name == way.name);
        Ok(WAYS.into_iter().filter(chosen).collect())
    }

    /// Returns the reason why it cannot run here; `None` if it can.
    pub fn absence(&self) -> Option<String> {
        match self.by {
            By::Library(library) if library.find().is_none() => {
                Some(format!("{} is not installed: {}", library.file, library.how_to_install()))
            }
            _ => None,
        }
    }

    /// Returns the shell words that start `command` in this way; `options` are for `megapage run`.
    pub fn recipe(&self, options: &[OsString], command: &[OsString]) -> String {
        let word = |word: &OsString| shell_word(&word.to_string_lossy());
        let mut words: Vec<String> =
            self.variable.iter().map(|(name, value)| format!("{name}={value}")).collect();
        match self.by {
            By::Itself => {}
            By::Library(library) => words.push(format!("LD_PRELOAD={}", library.file)),
            By::Run(own) => {
                words.extend(["megapage".into(), "run".into()]);
                words.extend(own.iter().map(|option| option.to_string()));
                words.extend(options.iter().map(word));
                words.push("--".into());
            }
        }
        words.extend(command.iter().map(word));
        words.join(" ")
    }

    /// Returns the process that runs `command` in this way, with the caller's environment. A value
    /// for GLIBC_TUNABLES or LD_PRELOAD is put behind the caller's; other variables are replaced.
    pub(super) fn command(
        &self,
        megapage: &Path,
        options: &[OsString],
        command: &[OsString],
    ) -> Result<Command> {
        let (program, arguments) = command.split_first().context("no command was given")?;
        let mut made = match self.by {
            By::Run(own) => {
                let mut made = Command::new(megapage);
                made.arg("run").args(own).args(options).arg("--").arg(program);
                made
            }
            By::Itself | By::Library(_) => Command::new(program),
        };
        made.args(arguments);
        if let By::Library(library) = self.by {
            let file = library.find().with_context(|| format!("{} is gone", library.file))?;
            made.env("LD_PRELOAD", joined("LD_PRELOAD", file.into_os_string()));
        }
        if let Some((name, value)) = self.variable {
            // glibc separates its tunables by colons, jemalloc its options by commas.
            made.env(name, if name == "GLIBC_TUNABLES" { joined(name, value.into()) } else { value.into() });
        }
        Ok(made)
    }
}

/// Returns the variable's present value, a colon, and `more`.
fn joined(name: &str, more: OsString) -> OsString {
    match env::var_os(name).filter(|value| !value.is_empty()) {
        None => more,
        Some(mut value) => {
            value.push(":");
            value.push(more);
            value
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(words: &[&str]) -> Vec<OsString> {
        words.iter().map(OsString::from).collect()
    }

    #[test]
    fn the_plain_way_is_always_among_those_chosen() {
        let names = |chosen: &[&str]| -> Vec<&str> {
            let chosen: Vec<String> = chosen.iter().map(|name| name.to_string()).collect();
            Way::select(&chosen).unwrap().iter().map(|way| way.name).collect()
        };
        assert_eq!(names(&["ours", "tunable"]), [PLAIN, "tunable", "ours"]);
        let error = Way::select(&["glibc".into()]).unwrap_err().to_string();
        assert!(error.starts_with("'glibc' is no way; the ways are plain, tunable, ours, "), "{error}");
    }

    #[test]
    fn a_recipe_is_what_a_shell_would_be_given() {
        let recipe = |name: &str, options: &[&str]| {
            let way = WAYS.into_iter().find(|way| way.name == name).unwrap();
            way.recipe(&words(options), &words(&["sort", "a file"]))
        };
        assert_eq!(recipe(PLAIN, &["--children"]), "sort 'a file'");
        assert_eq!(recipe("tunable", &[]), "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 sort 'a file'");
        assert_eq!(recipe("ours", &["--children"]), "megapage run --children -- sort 'a file'");
        assert!(recipe("jemalloc", &[]).contains("LD_PRELOAD=libjemalloc.so.2"));
    }

    #[test]
    fn a_command_is_started_with_its_arguments_and_the_ways_variables() {
        let made = |name: &str| {
            let way = WAYS.into_iter().find(|way| way.name == name).unwrap();
            let options = words(&["--children"]);
            way.command(Path::new("/m"), &options, &words(&["sort", "-n"])).unwrap()
        };
        let arguments =
            |command: &Command| command.get_args().map(|word| word.to_owned()).collect::<Vec<_>>();
        assert_eq!(arguments(&made(PLAIN)), ["-n"]);
        assert_eq!(made(PLAIN).get_envs().count(), 0);
        assert_eq!(arguments(&made("ours")), ["run", "--children", "--", "sort", "-n"]);
        assert!(made("tunable").get_envs().any(|(name, value)| {
            name == "GLIBC_TUNABLES"
                && value.is_some_and(|value| value.to_string_lossy().ends_with("hugetlb=1"))
        }));
    }
}
