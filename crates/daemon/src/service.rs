//! The daemon as a service: one on a machine, woken by time, by pressure and by signals, until it is told to stop.

use crate::config::{Config, ConfigError, DEFAULT_PATH};
use crate::daemon::{Daemon, DaemonError};
use crate::instance::{Instance, InstanceError};
use crate::log;
use crate::notify::Notify;
use crate::pass::Pass;
use crate::remember::Remembered;
use crate::reporter::{Reporter, ReporterError};
use crate::rights;
use megapage_act::execute::{Actuator, Done, DryRun, ExecuteError, Executor};
use megapage_kernel::pressure::Trigger;
use megapage_kernel::spawn::{Signals, signal, wait_any_readable};
use megapage_kernel::{KernelError, KernelRoot, boot_id, effective_uid, monotonic_time};
use std::fmt;
use std::io;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use thiserror::Error;
use tracing::{info, warn};

/// How often what must survive a restart is written at least, while passes act.
const REMEMBER_EVERY: Duration = Duration::from_secs(30);
/// Without CAP_SYS_RESOURCE the kernel watches pressure in steps of this.
const UNPRIVILEGED_WINDOW: Duration = Duration::from_secs(2);

/// Where the configuration comes from.
#[derive(Default)]
pub struct Source {
    /// The file that the user named; `None`: the default one, which need not be there.
    pub path: Option<PathBuf>,
    /// What the command line says over it.
    pub overrides: Option<Overrides>,
}

/// What a command line says over a file.
pub type Overrides = Box<dyn Fn(&mut Config) + Send>;

impl fmt::Debug for Source {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Source").field("path", &self.path).finish_non_exhaustive()
    }
}

impl Source {
    /// Reads the configuration as it is now.
    pub fn load(&self) -> Result<Config, ConfigError> {
        let needed = self.path.is_some();
        let path = self.path.clone().unwrap_or_else(|| DEFAULT_PATH.into());
        let mut config = Config::read(&path, needed)?;
        let Some(overrides) = &self.overrides else { return Ok(config) };
        overrides(&mut config);
        let file = "the command line".to_string();
        config.check().map_err(|(key, what)| ConfigError {
            file,
            line: None,
            what: format!("{key}: {what}"),
        })?;
        Ok(config)
    }
}

/// How the daemon is run.
#[derive(Debug, Default)]
pub struct Options {
    /// The configuration.
    pub source: Source,
    /// One pass, and no more.
    pub once: bool,
    /// Nothing is changed.
    pub dry_run: bool,
}

/// Why the daemon does not run, in one line.
#[derive(Debug, Error)]
pub enum ServiceError {
    /// The configuration.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A right that lacks.
    #[error("{0}")]
    Rights(String),
    /// Another daemon.
    #[error(transparent)]
    Instance(#[from] InstanceError),
    /// Nothing could be carried out.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
    /// Nobody could be told.
    #[error(transparent)]
    Reporter(#[from] ReporterError),
    /// Starting it.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// A file of the kernel's.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// Signals, or waiting for them.
    #[error("waiting for signals failed: {0}")]
    Wait(#[from] io::Error),
}

/// What ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Stop,
    Reload,
    Pressure,
}

/// Runs the daemon on this machine until it is told to stop: SIGTERM and SIGINT end it cleanly, SIGHUP has it read its
/// configuration again. `report` is told of each pass, and says whether to go on. Answers what was undone in the end.
pub fn run(
    root: &KernelRoot,
    options: &Options,
    report: &mut dyn FnMut(&Pass) -> bool,
) -> Result<Vec<Done>, ServiceError> {
    let config = options.source.load()?;
    log::init(&config.log);
    if let Some(lacking) = rights::lacking(root, options.dry_run)? {
        return Err(ServiceError::Rights(lacking));
    }
    // What changes nothing is nobody's business.
    let _instance = if options.dry_run { None } else { Some(Instance::take(&config.lock_file)?) };
    if options.once {
        let mut service = Service::start(root, options, config)?;
        let pass = service.daemon.single_pass();
        report(&pass);
        service.remember();
        return Ok(Vec::new());
    }
    let signals = Signals::take(&[signal::SIGHUP, signal::SIGTERM, signal::SIGINT])?;
    // A dry run is nobody's daemon: it runs beside one.
    let reporter = if options.dry_run { None } else { Some(Reporter::start(root, &config.metrics)?) };
    let mut service = Service { reporter, ..Service::start(root, options, config)? };
    service.serve(&signals, report)
}

struct Service<'a> {
    root: &'a KernelRoot,
    options: &'a Options,
    daemon: Daemon,
    reporter: Option<Reporter>,
    notify: Notify,
    boot: String,
    remembered: Instant,
}

impl<'a> Service<'a> {
    fn start(
        root: &'a KernelRoot,
        options: &'a Options,
        config: Config,
    ) -> Result<Service<'a>, ServiceError> {
        let actuator = actuator(root, &config, options.dry_run)?;
        let mut service = Service {
            root,
            options,
            daemon: Daemon::start(root, config, actuator, options.dry_run)?,
            reporter: None,
            notify: Notify::from_environment(),
            boot: boot_id(root)?,
            remembered: Instant::now(),
        };
        service.recall();
        Ok(service)
    }

    fn serve(
        &mut self,
        signals: &Signals,
        report: &mut dyn FnMut(&Pass) -> bool,
    ) -> Result<Vec<Done>, ServiceError> {
        let mut waker = Waker::new(self.root, self.daemon.config(), signals);
        let policy = &self.daemon.config().policy;
        info!("policy {policy}, {}, {}", self.daemon.sampling(), waker.describe());
        self.notify.send("READY=1");
        loop {
            let began = Instant::now();
            let pass = self.daemon.pass();
            if let Some(reporter) = &mut self.reporter {
                reporter.note(&pass);
            }
            if !report(&pass) {
                break;
            }
            if !pass.done.is_empty() && self.remembered.elapsed() >= REMEMBER_EVERY {
                self.remember();
            }
            let mut event = self.wait(began + self.daemon.pause(), &mut waker)?;
            if event == Some(Event::Pressure) {
                self.daemon.alarm();
                // Not faster than we look, however hard memory is pressed.
                event = self.wait(began + self.daemon.config().pressure.look, &mut waker)?;
            }
            match event {
                Some(Event::Stop) => break,
                Some(Event::Reload) => {
                    self.reload();
                    waker = Waker::new(self.root, self.daemon.config(), signals);
                }
                Some(Event::Pressure) | None => {}
            }
        }
        self.notify.send("STOPPING=1");
        let undone = self.daemon.stop();
        self.remember();
        Ok(undone)
    }

    /// Waits until `end`; an event ends it earlier.
    fn wait(&mut self, end: Instant, waker: &mut Waker<'_>) -> Result<Option<Event>, ServiceError> {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // What has come meanwhile is not to wait for a whole pass.
                return Ok(waker.wait(Duration::ZERO)?);
            }
            let mut event = Ok(None);
            self.daemon.idle(left, &mut |time| {
                if matches!(event, Ok(None)) {
                    event = waker.wait(time);
                }
                matches!(event, Ok(None))
            });
            if let Some(event) = event? {
                return Ok(Some(event));
            }
        }
    }

    fn reload(&mut self) {
        let micros = monotonic_time().as_micros();
        self.notify.send(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
        let taken = self.options.source.load().map_err(ServiceError::from);
        let taken = taken.and_then(|config| {
            if config.lock_file != self.daemon.config().lock_file || config.log != self.daemon.config().log {
                warn!("lock_file and [log] are taken over when the daemon is started again");
            }
            if let Some(reporter) = &mut self.reporter {
                reporter.reload(&config.metrics)?;
            }
            Ok(self.daemon.reload(config)?)
        });
        match taken {
            Ok(()) => info!("configuration read again: policy {}", self.daemon.config().policy),
            Err(error) => warn!("the former configuration stays in force: {error}"),
        }
        self.notify.send("READY=1");
    }

    fn recall(&mut self) {
        let path = &self.daemon.config().state_file;
        if self.options.dry_run || path.as_os_str().is_empty() {
            return;
        }
        match Remembered::read(path, &self.boot, effective_uid()) {
            Ok(remembered) => self.daemon.restore(&remembered),
            Err(error) => warn!("{} is passed over: {error}", path.display()),
        }
    }

    fn remember(&mut self) {
        let path = &self.daemon.config().state_file;
        if self.options.dry_run || path.as_os_str().is_empty() {
            return;
        }
        self.remembered = Instant::now();
        if let Err(error) = self.daemon.remembered().write(path, &self.boot) {
            warn!("{}: cannot be written: {error}; cool-downs are lost in a restart", path.display());
        }
    }
}

fn actuator(root: &KernelRoot, config: &Config, dry_run: bool) -> Result<Box<dyn Actuator>, ExecuteError> {
    if dry_run {
        return Ok(Box::new(DryRun::new()));
    }
    let executor = Executor::start(root, config.act.of_executor())?;
    executor.abilities().notes.iter().for_each(|note| info!("{note}"));
    Ok(Box::new(executor))
}

/// What is waited for between passes.
struct Waker<'a> {
    signals: &'a Signals,
    trigger: Option<Trigger>,
    watchdog: Option<(Duration, Instant)>,
    notify: Notify,
}

impl<'a> Waker<'a> {
    fn new(root: &KernelRoot, config: &Config, signals: &'a Signals) -> Waker<'a> {
        let (stall, within) = (config.pressure.stall, config.pressure.within);
        let trigger = Trigger::on_memory(root, stall, within).or_else(|_| {
            let window = UNPRIVILEGED_WINDOW * within.as_secs_f64().div_euclid(2.0).max(1.0) as u32;
            Trigger::on_memory(root, stall.mul_f64(window.as_secs_f64() / within.as_secs_f64()), window)
        });
        let notify = Notify::from_environment();
        let watchdog = notify.watchdog().map(|every| (every / 2, Instant::now()));
        Waker { signals, trigger: trigger.ok(), watchdog, notify }
    }

    fn describe(&self) -> &'static str {
        match self.trigger {
            Some(_) => "woken by memory pressure",
            None => "not woken by memory pressure: the kernel does not tell, or not us",
        }
    }

    /// Waits for at most `time`; what has come.
    fn wait(&mut self, time: Duration) -> io::Result<Option<Event>> {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let mut slice = left;
            if let Some((every, last)) = &mut self.watchdog {
                if last.elapsed() >= *every {
                    self.notify.send("WATCHDOG=1");
                    *last = Instant::now();
                }
                slice = slice.min(*every);
            }
            let pressed = match &self.trigger {
                Some(trigger) => trigger.wait(&[self.signals.as_fd()], slice)?.0,
                None => {
                    wait_any_readable(&[self.signals.as_fd()], slice)?;
                    false
                }
            };
            match self.signals.next()?.map(|signal| signal.number) {
                Some(signal::SIGHUP) => return Ok(Some(Event::Reload)),
                Some(_) => return Ok(Some(Event::Stop)),
                None if pressed => return Ok(Some(Event::Pressure)),
                None if left.is_zero() => return Ok(None),
                None => {}
            }
        }
    }
}
