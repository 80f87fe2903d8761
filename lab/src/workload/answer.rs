//! Answers of a workload program to its caller: one line of JSON on standard output, and an exit
//! status.

use crate::workload::measurement::Measurement;
use crate::workload::retrieval;
use anyhow::{Error, Result};
use serde::Serialize;
use std::process::ExitCode;

/// The name of a workload program, which its messages begin with.
#[derive(Clone, Copy, Debug)]
pub struct Program(pub &'static str);

impl Program {
    /// Returns status 0; or 2, after writing the reason to standard error.
    pub fn ended(self, ended: Result<()>) -> ExitCode {
        match ended {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => self.fail(2, &error),
        }
    }

    /// Does the same, and prints the result as a line of JSON.
    pub fn found(self, found: Result<impl Serialize>) -> ExitCode {
        self.ended(found.and_then(|found| {
            println!("{}", serde_json::to_string(&found)?);
            Ok(())
        }))
    }

    /// Does the same with a measurement; returns 1 if a retrieval found too few songs.
    pub fn measured(self, measured: Result<Measurement>) -> ExitCode {
        let recall = measured.as_ref().ok().and_then(|it| it.values.get("recall").copied());
        let printed = self.found(measured);
        match recall {
            Some(recall) if printed == ExitCode::SUCCESS && recall < retrieval::RECALL_FLOOR => {
                let floor = retrieval::RECALL_FLOOR;
                let what = format!("recall {recall:.3} is below {floor}: the index or the search is damaged");
                self.fail(1, &Error::msg(what))
            }
            _ => printed,
        }
    }

    fn fail(self, status: u8, error: &Error) -> ExitCode {
        eprintln!("{}: {error:#}", self.0);
        ExitCode::from(status)
    }
}
