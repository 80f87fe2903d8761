//! `megapage doctor`.

mod text;

use anyhow::Result;
use megapage_doctor::{Diagnosis, Request, SCHEMA, gather};
use megapage_kernel::KernelRoot;
use std::ffi::OsString;
use std::process::ExitCode;

/// Find and explain what stands between a user or a program and huge pages
#[derive(Debug, clap::Args)]
pub struct Args {
    /// The user in question, by login name or number; trying as another user needs root
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Also look at this program: a path, or a name that is looked up in PATH
    #[arg(long = "for", value_name = "PROGRAM")]
    program: Option<OsString>,
    /// Conclude from what can be read, and ask the kernel for no page
    #[arg(long)]
    only_read: bool,
    /// Print JSON (schema megapage.doctor/1)
    #[arg(long)]
    json: bool,
}

/// 0 with nothing weightier than a note, 1 with findings.
pub fn main(args: Args) -> Result<ExitCode> {
    let request = Request { user: args.user, program: args.program, only_read: args.only_read };
    let diagnosis = Diagnosis::of(&gather(&KernelRoot::live(), &request)?);
    if args.json {
        println!("{}", megapage_report::json(SCHEMA, &diagnosis));
    } else {
        print!("{}", text::human(&diagnosis));
    }
    Ok(ExitCode::from(u8::from(diagnosis.has_findings())))
}
