//! `megapage generate`: manual pages and shell completions, from the options as they are declared
//! here.

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Files in which each shell looks for completions, below the directory `share` of a prefix.
const SHELLS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions/megapage"),
    (Shell::Zsh, "zsh/site-functions/_megapage"),
    (Shell::Fish, "fish/vendor_completions.d/megapage.fish"),
];

/// Files that every page names.
const FILES: [(&str, &str); 3] = [
    ("/etc/megapage/daemon.toml", "Configuration of the daemon, with every option explained."),
    ("/run/megapage/", "Sockets of the daemon and of brokers; settings to restore after a kill."),
    ("/var/lib/megapage/", "State of the daemon, and what trials as root have found."),
];

/// Write the manual pages, and the completions for bash, zsh and fish.
///
/// For `make install` and packages: every command gets a page, man/man1/megapage-COMMAND.1.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// The directory `share` of the prefix; it need not exist.
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
    /// The date that the pages carry, such as 2026-11-24.
    #[arg(long, value_name = "DATE", default_value = "")]
    date: String,
}

pub fn main(args: Args, command: Command) -> Result<ExitCode> {
    let command = without_hidden(&command);
    for (shell, path) in SHELLS {
        let mut script = Vec::new();
        clap_complete::generate(shell, &mut command.clone(), "megapage", &mut script);
        write(&args.directory.join(path), &script)?;
    }
    // `megapage-help.1` would repeat the description of `--help` on every page.
    let mut command = command.disable_help_subcommand(true);
    command.build();
    let pages = Pages {
        directory: args.directory.join("man/man1"),
        source: concat!("megapage ", env!("CARGO_PKG_VERSION")),
        date: args.date,
    };
    pages.write(&command, None)?;
    Ok(ExitCode::SUCCESS)
}

/// Returns the command without its hidden subcommands, for completions would offer them too.
fn without_hidden(command: &Command) -> Command {
    Command::new("megapage")
        .version(env!("CARGO_PKG_VERSION"))
        .about(command.get_about().cloned().unwrap_or_default())
        .subcommand_required(command.is_subcommand_required_set())
        .args(command.get_arguments().cloned())
        .subcommands(shown(command).cloned())
}

/// The pages of one version.
struct Pages {
    directory: PathBuf,
    source: &'static str,
    date: String,
}

impl Pages {
    /// Writes the page of `command`, and those of its subcommands.
    fn write(&self, command: &Command, above: Option<&Command>) -> Result<()> {
        write(&self.directory.join(format!("{}.1", name(command))), &self.page(command, above)?)?;
        shown(command).try_for_each(|below| self.write(below, Some(command)))
    }

    fn page(&self, command: &Command, above: Option<&Command>) -> Result<Vec<u8>> {
        let man = Man::new(command.clone())
            .title(name(command).to_uppercase())
            .source(self.source)
            .manual("megapage")
            .date(&self.date);
        let mut page = Vec::new();
        man.render_title(&mut page)?;
        man.render_name_section(&mut page)?;
        man.render_synopsis_section(&mut page)?;
        man.render_description_section(&mut page)?;
        man.render_options_section(&mut page)?;
        if shown(command).next().is_some() {
            man.render_subcommands_section(&mut page)?;
        }
        if command.get_after_long_help().or(command.get_after_help()).is_some() {
            man.render_extra_section(&mut page)?;
        }
        closing(command, above).to_writer(&mut page)?;
        // Two breaks, before the values of an option, become a paragraph: mandoc warns about two
        // breaks.
        let page = String::from_utf8(page).context("a page is not UTF-8")?;
        Ok(page.replace("\n.br\n\n.br\n", "\n.sp\n").into_bytes())
    }
}

/// Returns the end of each page: exit status, unless described before, files, other pages.
fn closing(command: &Command, above: Option<&Command>) -> Roff {
    let mut roff = Roff::new();
    let described = command.get_long_about().is_some_and(|about| about.to_string().contains("Exit status"));
    if !described {
        roff.control("SH", ["EXIT STATUS"]);
        for (status, meaning) in [
            ("0", "The command did what was asked."),
            ("1", "It did a part, or found something to report."),
            ("2", "The input is wrong, or what was asked is not possible; standard error has one line."),
        ] {
            roff.control("TP", []);
            roff.text([bold(status)]);
            roff.text([roman(meaning)]);
        }
    }
    roff.control("SH", ["FILES"]);
    for (file, content) in FILES {
        roff.control("TP", []);
        roff.text([bold(file)]);
        roff.text([roman(content)]);
    }
    let mut others: Vec<&str> = above.into_iter().map(name).collect();
    others.extend(above.into_iter().flat_map(shown).map(name).filter(|other| *other != name(command)));
    others.extend(shown(command).map(name));
    roff.control("SH", ["SEE ALSO"]);
    let last = others.len().saturating_sub(1);
    for (index, other) in others.into_iter().enumerate() {
        let end = if index == last { "" } else { "," };
        roff.control("BR", [other, &format!("(1){end}")]);
    }
    roff
}

/// Returns the subcommands that users see.
fn shown(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|below| !below.is_hide_set())
}

/// Returns the name of the page: `megapage-pool-set`.
fn name(command: &Command) -> &str {
    command.get_display_name().unwrap_or_else(|| command.get_name())
}

fn write(path: &Path, content: &[u8]) -> Result<()> {
    let shown = || path.display().to_string();
    fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).with_context(shown)?;
    fs::write(path, content).with_context(shown)
}
