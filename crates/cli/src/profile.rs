//! `megapage profile`: what runs have found out about programs.

use crate::flags::name;
use crate::output::print;
use anyhow::{Context, Result, anyhow, bail};
use megapage_launch::profile::{Profile, Store, Stored, date, directory};
use megapage_report::{json, table};
use megapage_units::Bytes;
use megapage_units::shown::shell_path;
use serde::Serialize;
use std::process::ExitCode;

/// Digits of a key that are shown.
const DIGITS: usize = 12;

/// See and forget what `megapage run` has found out about programs.
#[derive(Debug, clap::Subcommand)]
pub enum Command {
    List(ListArgs),
    Show(ShowArgs),
    Forget(ForgetArgs),
}

/// List the profiles of the calling user.
#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Print JSON (schema megapage.profile-list/1).
    #[arg(long)]
    json: bool,
}

/// Show what is known of a program, and what its last runs cost.
#[derive(Debug, clap::Args)]
pub struct ShowArgs {
    /// The program's path or file name, or the first digits of a profile's key.
    #[arg(value_name = "PROGRAM", value_parser = name)]
    program: String,
    /// Print JSON (schema megapage.profile-show/1).
    #[arg(long)]
    json: bool,
}

/// Remove the profiles of a program, or all.
#[derive(Debug, clap::Args)]
pub struct ForgetArgs {
    /// The program's path or file name, or the first digits of a profile's key.
    #[arg(value_name = "PROGRAM", value_parser = name, required_unless_present = "all")]
    program: Option<String>,
    /// All profiles of the calling user.
    #[arg(long, conflicts_with = "program")]
    all: bool,
    /// Print what would be done, as shell lines, and do nothing.
    #[arg(long)]
    dry_run: bool,
}

pub fn main(command: Command) -> Result<ExitCode> {
    let path = directory().map_err(|why| anyhow!("no directory of profiles: {why}"))?;
    let store = Store::at(path);
    let all = Stored::all(&store).with_context(|| store.path().display().to_string())?;
    match command {
        Command::List(args) => list(&store, all, args.json)?,
        Command::Show(args) => show(&meant(all, &args.program)?, args.json)?,
        Command::Forget(args) => {
            let meant = match &args.program {
                Some(name) => meant(all, name)?,
                None => all,
            };
            for stored in meant {
                if args.dry_run {
                    print(&format!("rm -- {}\n", shell_path(&stored.file)))?;
                } else {
                    store.remove(&stored.key).with_context(|| stored.file.display().to_string())?;
                }
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

fn meant(all: Vec<Stored<Profile>>, name: &str) -> Result<Vec<Stored<Profile>>> {
    let meant: Vec<Stored<Profile>> = all.into_iter().filter(|stored| stored.is_meant_by(name)).collect();
    if meant.is_empty() {
        bail!("no profile of {name}: megapage profile list shows all");
    }
    Ok(meant)
}

#[derive(Serialize)]
struct Listed {
    directory: String,
    profiles: Vec<Entry>,
}

#[derive(Serialize)]
struct Entry {
    key: String,
    file: String,
    program: Option<String>,
    arguments: Option<u64>,
    /// When the last run ended: seconds since 1970.
    last_run: Option<u64>,
    runs: Option<usize>,
    known: Vec<String>,
    /// What is wrong with it.
    error: Option<String>,
}

impl Entry {
    fn of(stored: Stored<Profile>) -> Entry {
        let profile = stored.content.as_ref().ok();
        Entry {
            program: profile.map(|it| it.identity.program.clone()),
            arguments: profile.map(|it| it.identity.arguments),
            last_run: profile.and_then(|it| Some(it.runs.last()?.ended)),
            runs: profile.map(|it| it.runs.len()),
            known: profile.map(|it| it.findings.in_words()).unwrap_or_default(),
            error: stored.content.as_ref().err().cloned(),
            file: stored.file.display().to_string(),
            key: stored.key,
        }
    }
}

fn list(store: &Store, all: Vec<Stored<Profile>>, as_json: bool) -> Result<()> {
    let profiles: Vec<Entry> = all.into_iter().map(Entry::of).collect();
    let directory = store.path().display().to_string();
    if as_json {
        print(&(json("megapage.profile-list/1", &Listed { directory, profiles }) + "\n"))?;
        return Ok(());
    }
    if profiles.is_empty() {
        print(&format!("No profiles in {directory}.\n"))?;
        return Ok(());
    }
    let rows = profiles.into_iter().map(|it| {
        let known = match it.error {
            Some(error) => error,
            None if it.known.is_empty() => "nothing that helps".into(),
            None => it.known.join(", "),
        };
        [
            it.key[..DIGITS.min(it.key.len())].to_string(),
            it.program.unwrap_or_default(),
            it.arguments.map_or("-".into(), |count| count.to_string()),
            it.last_run.map_or("-".into(), date),
            known,
        ]
    });
    print(&table(&["KEY", "PROGRAM", "ARGUMENTS", "LAST RUN", "KNOWN"], rows))?;
    Ok(())
}

#[derive(Serialize)]
struct Shown<'a> {
    profiles: Vec<ShownProfile<'a>>,
}

#[derive(Serialize)]
struct ShownProfile<'a> {
    key: &'a str,
    file: String,
    profile: Option<&'a Profile>,
    error: Option<&'a str>,
}

fn show(meant: &[Stored<Profile>], as_json: bool) -> Result<()> {
    if as_json {
        let profiles = meant.iter().map(|stored| ShownProfile {
            key: &stored.key,
            file: stored.file.display().to_string(),
            profile: stored.content.as_ref().ok(),
            error: stored.content.as_ref().err().map(String::as_str),
        });
        print(&(json("megapage.profile-show/1", &Shown { profiles: profiles.collect() }) + "\n"))?;
        return Ok(());
    }
    let texts: Vec<String> = meant.iter().map(human).collect();
    print(&texts.join("\n"))?;
    Ok(())
}

fn human(stored: &Stored<Profile>) -> String {
    let mut text = format!("{}\n", stored.file.display());
    let profile = match &stored.content {
        Ok(profile) => profile,
        Err(error) => return text + &format!("not used: {error}\n"),
    };
    let identity = &profile.identity;
    text += &format!("program: {}, {} arguments\n", identity.program, identity.arguments);
    text += &format!("build: {}, {}\n", identity.executable.build, Bytes(identity.executable.bytes));
    text += &format!("asked: {}\n", identity.options.join(", "));
    for known in profile.findings.in_words() {
        text += &format!("known: {known}\n");
    }
    let rows = profile.runs.iter().map(|run| {
        [
            date(run.ended),
            if run.told { "yes" } else { "no" }.into(),
            format!("{:.2} s", run.elapsed_ms as f64 / 1e3),
            format!("{:.2} s", run.user_ms as f64 / 1e3),
            format!("{:.2} s", run.system_ms as f64 / 1e3),
            (run.minor_faults + run.major_faults).to_string(),
            Bytes(run.peak_rss_bytes).to_string(),
            run.huge_percent.map_or("-".into(), |percent| format!("{percent:.1} %")),
        ]
    });
    text + &table(&["ENDED", "TOLD", "ELAPSED", "USER", "SYSTEM", "FAULTS", "PEAK", "HUGE"], rows)
}
