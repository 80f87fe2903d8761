//! Reporter: receives the loop's passes, and makes them available to others.

use crate::Pass;
use crate::log::PassLog;
use crate::observability::MetricsConfig;
pub use crate::reporter_error::ReporterError;
use crate::serve::{Listeners, Server};
use crate::shared::Shared;
use crate::telemetry::Telemetry;
use megapage_kernel::trusted::try_replace_file;
use megapage_kernel::{KernelRoot, boot_time};
use std::sync::Arc;

/// Most decisions that are stored.
const MOST_DECISIONS: usize = 256;

/// Store for the reports of passes, with a thread that answers requests for them. Dropping it ends
/// the thread, and removes the socket and the textfile.
#[derive(Debug)]
pub struct Reporter {
    shared: Arc<Shared>,
    server: Option<Server>,
    config: MetricsConfig,
    /// True if everything that `config` asks for is open.
    serves: bool,
    log: PassLog,
}

impl Reporter {
    /// Opens the sockets and files of `config`. Call it after the signals that the loop wants have
    /// been blocked: the thread inherits the mask. Kernel counters are read below `root`.
    pub fn start(root: &KernelRoot, config: &MetricsConfig) -> Result<Reporter, ReporterError> {
        let telemetry = Telemetry::new(boot_time(), config.processes, MOST_DECISIONS);
        let shared = Arc::new(Shared::new(root.clone(), telemetry));
        try_textfile(config)?;
        let listeners = Listeners::open(config, None)?;
        let mut reporter =
            Reporter { shared, server: None, config: config.clone(), serves: true, log: PassLog::default() };
        reporter.serve(listeners)?;
        Ok(reporter)
    }

    /// Adds a pass to the sums and decisions, and logs it. Never waits.
    pub fn note(&mut self, pass: &Pass) {
        self.shared.telemetry().note(pass, boot_time());
        self.log.note(pass);
        if let Some(server) = &mut self.server {
            server.noted();
        }
    }

    /// Changes to another configuration; sums stay. On failure everything stays as it was, but
    /// clients that were being answered may have to ask again.
    pub fn reload(&mut self, config: &MetricsConfig) -> Result<(), ReporterError> {
        if *config == self.config && self.serves {
            return Ok(());
        }
        try_textfile(config)?;
        let mut open = self.server.take().map(Server::stop).unwrap_or_default();
        let opened = Listeners::open(config, Some((&self.config, &mut open)));
        let result = match opened {
            Ok(opened) => {
                self.shared.telemetry().resize(config.processes);
                self.config = config.clone();
                open = opened;
                Ok(())
            }
            Err(error) => Err(error),
        };
        self.serve(open)?;
        result
    }

    fn serve(&mut self, listeners: Listeners) -> Result<(), ReporterError> {
        let textfile = self.config.textfile.clone();
        if !listeners.is_empty() || !textfile.as_os_str().is_empty() {
            let started = Server::start(&self.shared, listeners, textfile);
            self.serves = started.is_ok();
            self.server = Some(started.map_err(ReporterError::Thread)?);
        }
        Ok(())
    }
}

/// Checks that the textfile can be written, so that a failure is reported at once and not every few
/// seconds.
fn try_textfile(config: &MetricsConfig) -> Result<(), ReporterError> {
    let path = &config.textfile;
    if path.as_os_str().is_empty() {
        return Ok(());
    }
    try_replace_file(path).map_err(|source| ReporterError::Textfile { path: path.clone(), source })
}
