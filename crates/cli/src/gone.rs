//! Removed commands and options, and their replacements. An entry stays for one release, for
//! options stand in deployed drop-ins and scripts.

use What::{Flag, Value, Whole, WithValue};
use clap::Command;
use std::ffi::OsString;

/// A removed command or option.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Gone {
    /// The command, of one or two words, or commands with `|` between them.
    command: &'static str,
    what: What,
    /// The replacement, in one sentence.
    instead: &'static str,
}

#[derive(Clone, Copy, Debug)]
enum What {
    /// The whole command.
    Whole,
    /// An option without a value.
    Flag(&'static str),
    /// An option with a value.
    WithValue(&'static str),
    /// One value of an option that stays: the option, the value.
    Value(&'static str, &'static str),
}

const fn gone(command: &'static str, what: What, instead: &'static str) -> Gone {
    Gone { command, what, instead }
}

const LABORATORY: &str = "megapage-lab in the source tree (make lab) has the benches of allocators.";

/// Everything that was removed.
pub const GONE: &[Gone] = &[
    gone("run", Flag("--fix"), "megapage run --dry-run prints the line that adds the pages."),
    gone("run", Flag("--text-map"), "--text file moves code that perf finds the names of."),
    gone("run|enable", Value("--shm", "1g"), "--shm 2m takes pages of the pool."),
    gone("trial", WithValue("--error"), "the interval holds in 95 of 100 trials."),
    gone("reclaim", WithValue("--timeout"), "each process takes at most 10 seconds."),
    gone("prime", WithValue("--mapped-by"), "megapage prime takes PIDs, such as those of pgrep."),
    gone("pool serve", WithValue("--parcel"), "--extent is its name."),
    gone("run", Flag("--no-profile"), "megapage run keeps no profiles; --ignore-trial ignores a trial."),
    gone("profile", Whole, "rm -r /var/lib/megapage/profiles removes what earlier versions left."),
    gone("lend", Whole, "cp -a copies the command and its libraries (docs/containers.md)."),
    gone("simulate", Whole, "megapage-lab simulate in the source tree (make lab) has the modelled machine."),
    gone("bench retrieval|bench release|bench idle|bench startup|bench access", Whole, LABORATORY),
    gone("map", WithValue("--svg"), "map prints the picture as text; --json has every region."),
    gone("map|top|advise", Value("--tracker", "damon-virtual"), "the best tracker of this kernel is used."),
    gone("map|top|advise", Value("--tracker", "smaps"), "the best tracker of this kernel is used."),
    gone("top", Flag("--numa"), "top shows up to four nodes always."),
    gone("top", Flag("-n"), "top shows up to four nodes always."),
    gone("top", Flag("--reverse"), "press r."),
    gone("top", Flag("-r"), "press r."),
    gone("plan", WithValue("--quantile"), "plan takes the 99th percentile."),
    gone("plan", WithValue("--seed"), "plan gives the same answer each time."),
    gone("plan", WithValue("--host-memory"), "each host has what it has."),
    gone("advise", WithValue("--trial-budget"), "a trial slows its process by at most 10 %."),
    gone("remap align", Whole, "megapage run --text thp moves code as is; see megapage remap check."),
];

/// Takes the options of `table` out of `arguments`, which begin with the program's name. Returns
/// the other arguments, and one warning for each option that was taken out. A removed command is an
/// error that names the replacement. `commands` builds the present commands.
pub fn take_out(
    table: &[Gone],
    commands: impl FnOnce() -> Command,
    arguments: Vec<OsString>,
) -> Result<(Vec<OsString>, Vec<String>), String> {
    let word = |index: usize| arguments.get(index).and_then(|word| word.to_str()).unwrap_or_default();
    let two_words = format!("{} {}", word(1), word(2));
    let of_command = |gone: &&Gone| gone.command.split('|').any(|it| it == word(1) || it == two_words);
    let entries: Vec<&Gone> = table.iter().filter(of_command).collect();
    if let Some(gone) = entries.iter().find(|gone| matches!(gone.what, Whole)) {
        let name = if gone.command.contains(' ') { &two_words } else { word(1) };
        return Err(format!("{name} is gone: {}", gone.instead));
    }
    let is_gone = |at: usize| entries.iter().any(|gone| gone.words(&arguments[at..]).is_some());
    if !(0..arguments.len()).any(is_gone) {
        return Ok((arguments, Vec::new()));
    }
    let commands = commands();
    let command = commands.find_subcommand(word(1)).map(|it| it.find_subcommand(word(2)).unwrap_or(it));
    let (mut kept, mut warnings) = (Vec::new(), Vec::new());
    let mut rest = &arguments[..];
    while let Some(argument) = rest.first() {
        let is_own = kept.len() < 2 || !ends_own(command, argument);
        let gone = entries.iter().find_map(|gone| Some((gone, gone.words(rest)?)));
        let words = match gone {
            _ if !is_own => rest.len(),
            Some((gone, words)) => {
                let warning = format!("warning: {} is gone: {}", gone.name(), gone.instead);
                if !warnings.contains(&warning) {
                    warnings.push(warning);
                }
                rest = &rest[words..];
                continue;
            }
            None if takes_value(command, argument) => rest.len().min(2),
            None => 1,
        };
        kept.extend_from_slice(&rest[..words]);
        rest = &rest[words..];
    }
    Ok((kept, warnings))
}

/// Returns true for `--`, and for the program of a command that starts one: the following arguments
/// are not megapage's.
fn ends_own(command: Option<&Command>, argument: &OsString) -> bool {
    let starts = |it: &Command| it.get_positionals().any(clap::Arg::is_trailing_var_arg_set);
    argument == "--" || command.is_some_and(starts) && !argument.to_string_lossy().starts_with('-')
}

/// Returns true for an option that exists now, and takes its value from the next argument.
fn takes_value(command: Option<&Command>, argument: &OsString) -> bool {
    let is_it = |arg: &&clap::Arg| arg.get_long().is_some_and(|long| *argument == *format!("--{long}"));
    command
        .and_then(|it| it.get_arguments().find(is_it))
        .is_some_and(|arg| arg.get_action().takes_values() && !arg.is_require_equals_set())
}

impl Gone {
    /// Returns the number of arguments at the start of `rest` that are this option and its value.
    fn words(&self, rest: &[OsString]) -> Option<usize> {
        let argument = rest.first()?;
        let (option, wanted) = match self.what {
            Whole => return None,
            Flag(option) => return (argument == option).then_some(1),
            WithValue(option) => (option, None),
            Value(option, value) => (option, Some(value)),
        };
        let (value, words) = match argument.to_string_lossy().strip_prefix(option)? {
            "" => (rest.get(1)?.to_string_lossy().into_owned(), 2),
            value => (value.strip_prefix('=')?.to_string(), 1),
        };
        wanted.is_none_or(|wanted| wanted == value).then_some(words)
    }

    fn name(&self) -> String {
        match self.what {
            Whole => self.command.into(),
            Flag(option) | WithValue(option) => option.into(),
            Value(option, value) => format!("{option} {value}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;

    const TABLE: &[Gone] = &[
        gone("lend", Whole, "copy it."),
        gone("remap align", Whole, "use run --text."),
        gone("run", Flag("--fix"), "size the pool."),
        gone("run", WithValue("--argv0"), "use exec -a."),
        gone("top|map", Value("--tracker", "damon"), "leave it out."),
    ];

    fn commands() -> Command {
        let program = Arg::new("program").num_args(1..).trailing_var_arg(true);
        let pool = Arg::new("pool").long("pool").num_args(0..=1).require_equals(true);
        let run = Command::new("run").args([Arg::new("heap").long("heap"), pool, program]);
        Command::new("megapage").subcommands([run, Command::new("map").arg(Arg::new("process"))])
    }

    /// Returns the remaining line, and the warnings.
    fn left(line: &str) -> (String, Vec<String>) {
        let arguments = line.split(' ').map(OsString::from).collect();
        let (kept, warnings) = take_out(TABLE, commands, arguments).unwrap();
        let words: Vec<&str> = kept.iter().map(|it| it.to_str().unwrap()).collect();
        (words.join(" "), warnings)
    }

    #[test]
    fn options_that_left_are_taken_out_and_warned_of_once() {
        let (line, warnings) = left("m run --fix --heap 2m --argv0 a --argv0=b --pool x --fix");
        assert_eq!(line, "m run --heap 2m --pool x --fix", "x is the program");
        let expected = ["warning: --fix is gone: size the pool.", "warning: --argv0 is gone: use exec -a."];
        assert_eq!(warnings, expected);
    }

    #[test]
    fn what_belongs_to_the_program_stays() {
        for line in [
            "m run prog --fix",
            "m run -- --fix",
            "m run --heap --fix p",
            "m run --fixed p",
            "m run --fix=1 p",
        ] {
            assert_eq!(left(line), (line.to_string(), vec![]));
        }
        assert_eq!(left("m run --fix -- p --fix").0, "m run -- p --fix");
    }

    #[test]
    fn an_option_may_be_gone_for_one_value() {
        assert_eq!(left("m map --tracker bpf 1").1, Vec::<String>::new());
        assert_eq!(left("m map 1 --tracker damon"), left("m map 1 --tracker=damon"));
        let (line, warnings) = left("m map 1 --json --tracker damon");
        assert_eq!(line, "m map 1 --json");
        assert!(warnings[0].starts_with("warning: --tracker damon is gone"), "{warnings:?}");
    }

    #[test]
    fn commands_that_left_say_where_they_went() {
        let refused = |line: &str| {
            take_out(TABLE, commands, line.split(' ').map(OsString::from).collect()).unwrap_err()
        };
        assert_eq!(refused("m lend /x"), "lend is gone: copy it.");
        assert_eq!(refused("m remap align a b"), "remap align is gone: use run --text.");
        assert_eq!(left("m remap check align").0, "m remap check align");
        assert_eq!(left("m").0, "m");
    }

    #[test]
    fn nothing_that_stands_in_the_table_is_there_still() {
        let commands = <crate::Cli as clap::CommandFactory>::command();
        let each = GONE.iter().flat_map(|gone| gone.command.split('|').map(move |command| (gone, command)));
        for (gone, command) in each {
            let mut words = command.split(' ');
            let first = commands.find_subcommand(words.next().unwrap());
            let found = words.next().map_or(first, |word| first.and_then(|it| it.find_subcommand(word)));
            let has = |option: &str| {
                let is_it = |arg: &clap::Arg| {
                    let long = arg.get_long().map(|long| format!("--{long}"));
                    let short = arg.get_short().map(|short| format!("-{short}"));
                    [long, short].iter().flatten().any(|name| name == option)
                };
                found.is_some_and(|it| it.get_arguments().any(is_it))
            };
            match gone.what {
                Whole => assert!(found.is_none(), "{gone:?}"),
                Flag(option) | WithValue(option) => {
                    assert!(found.is_some() && !has(option), "{gone:?}")
                }
                Value(option, _) => assert!(has(option), "{gone:?}"),
            }
            assert!(gone.instead.ends_with('.') && !gone.instead.contains('\n'), "{gone:?}");
        }
    }
}
