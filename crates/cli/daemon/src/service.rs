//! The daemon as a service: one on a machine, woken by time, by pressure and by signals, and run up
//! to an instruction to stop.

use crate::children::{Watched, have_ended};
use crate::config::{Config, ConfigError, DEFAULT_PATH, STALL, WITHIN};
use crate::daemon::{Daemon, DaemonError};
use crate::filling::Filling;
use crate::instance::{Instance, InstanceError};
use crate::log;
use crate::pass::Pass;
use crate::reporter::{Reporter, ReporterError};
use crate::rights;
use crate::saved_state::SavedState;
use crate::select::Veto;
use megapage_act::execute::{Actuator, DryRun, ExecuteError, Executor};
use megapage_decide::{OWN, Obtained};
use megapage_kernel::pressure::Trigger;
use megapage_kernel::service::Notify;
use megapage_kernel::spawn::{Signals, set_nice, signal, wait_any_readable};
use megapage_kernel::{KernelError, KernelRoot, boot_id, effective_uid, monotonic_time};
use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use thiserror::Error;
use tracing::{info, warn};

/// Longest time between two writings of the state for a restart, while passes act.
const SAVE_EVERY: Duration = Duration::from_secs(30);
/// Step in which the kernel watches pressure without CAP_SYS_RESOURCE.
const UNPRIVILEGED_WINDOW: Duration = Duration::from_secs(2);

/// Source of the configuration.
#[derive(Default)]
pub struct Source {
    /// File that the user named; `None` for the default one, which need not exist.
    pub path: Option<PathBuf>,
    /// Options of the command line, which override the file.
    pub overrides: Option<Overrides>,
}

/// Options of a command line, which override a file.
pub type Overrides = Box<dyn Fn(&mut Config) + Send>;

impl Source {
    /// Reads the configuration as it is now.
    pub fn load(&self) -> Result<Config, ConfigError> {
        self.load_by(Config::read)
    }

    fn load_by(&self, read: fn(&Path, bool) -> Result<Config, ConfigError>) -> Result<Config, ConfigError> {
        let needed = self.path.is_some();
        let path = self.path.clone().unwrap_or_else(|| DEFAULT_PATH.into());
        let mut config = read(&path, needed)?;
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

/// Options of a run.
#[derive(Default)]
pub struct Options {
    /// The configuration.
    pub source: Source,
    /// True for one pass only.
    pub once: bool,
    /// True to change nothing.
    pub dry_run: bool,
}

/// Reason why the daemon does not run, in one line.
#[derive(Debug, Error)]
pub enum ServiceError {
    /// The configuration is wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// A right is missing.
    #[error("{0}")]
    Rights(String),
    /// Another daemon runs.
    #[error(transparent)]
    Instance(#[from] InstanceError),
    /// Actions cannot be carried out.
    #[error(transparent)]
    Execute(#[from] ExecuteError),
    /// Reports cannot be served.
    #[error(transparent)]
    Reporter(#[from] ReporterError),
    /// The daemon cannot start.
    #[error(transparent)]
    Daemon(#[from] DaemonError),
    /// A kernel file cannot be read.
    #[error(transparent)]
    Kernel(#[from] KernelError),
    /// Signals cannot be taken, or waiting for them failed.
    #[error("waiting for signals failed: {0}")]
    Wait(#[from] io::Error),
}

/// Event that ended a wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Event {
    Stop,
    Reload,
    /// Tasks wait for memory.
    Pressure,
    /// Memory fills.
    Filling,
    /// More is known of a large new process, or a forked child has ended.
    Due,
}

/// Runs the daemon on this machine up to an instruction to stop: SIGTERM and SIGINT end it cleanly,
/// SIGHUP makes it read its configuration again. `veto` excludes processes that megapage must not
/// touch. `report` receives each pass, and returns true to go on.
pub fn run(
    root: &KernelRoot,
    options: &Options,
    veto: Veto,
    report: &mut dyn FnMut(&Pass) -> bool,
) -> Result<(), ServiceError> {
    let config = options.source.load()?;
    log::init(&config.log);
    config.ignored.iter().for_each(|warning| warn!("{warning}"));
    if let Some(lacking) = rights::lacking(root, options.dry_run)? {
        return Err(ServiceError::Rights(lacking));
    }
    // Signals are blocked from here on: every thread and child that starts later must find them
    // blocked.
    let signals = match options.once {
        true => None,
        false => Some(Signals::take(&[signal::SIGHUP, signal::SIGTERM, signal::SIGINT])?),
    };
    // Checked first, so that it is reported before anything is tried; the lock is taken below.
    if !options.dry_run {
        Instance::check(root, &config.lock_file)?;
    }
    // Two processes that clear accessed bits would each spoil the other's samples.
    let alone = !options.dry_run || Instance::check(root, &config.lock_file).is_ok();
    let mut service = Service::start(root, options, config, veto, alone)?;
    // The lock is taken after the kernel's abilities were tried in children: they would hold it,
    // too. A dry run serves no client.
    let _instance = match options.dry_run {
        true => None,
        false => Some(Instance::take(root, &service.daemon.config().lock_file)?),
    };
    service.recall();
    let Some(signals) = signals else {
        info!("{}", service.describe());
        let pass = service.daemon.single_pass();
        report(&pass);
        service.save();
        return Ok(());
    };
    if !options.dry_run {
        service.reporter = Some(Reporter::start(root, &service.daemon.config().metrics)?);
    }
    let served = service.serve(&signals, report);
    // Needed in any case, also after an error.
    service.stop();
    served
}

struct Service<'a> {
    root: &'a KernelRoot,
    options: &'a Options,
    daemon: Daemon,
    reporter: Option<Reporter>,
    notify: Notify,
    boot: String,
    saved: Instant,
    /// True if something was done since then.
    dirty: bool,
}

impl<'a> Service<'a> {
    fn start(
        root: &'a KernelRoot,
        options: &'a Options,
        config: Config,
        veto: Veto,
        alone: bool,
    ) -> Result<Service<'a>, ServiceError> {
        // Without a better priority passes only come later.
        if let Err(error) = set_nice(config.nice) {
            warn!("the priority cannot be set: {error}");
        }
        if !alone {
            info!("a daemon is running: this dry run takes no samples, and estimates no costs");
        }
        let actuator = actuator(root, options.dry_run)?;
        let daemon = Daemon::start(root, config, actuator, veto, options.dry_run, alone)?;
        daemon.cost_warning().iter().for_each(|warning| warn!("{warning}"));
        Ok(Service {
            root,
            options,
            daemon,
            reporter: None,
            notify: Notify::from_environment(),
            boot: boot_id(root)?,
            saved: Instant::now(),
            dirty: false,
        })
    }

    fn serve(
        &mut self,
        signals: &Signals,
        report: &mut dyn FnMut(&Pass) -> bool,
    ) -> Result<(), ServiceError> {
        let mut waker = Waker::new(self.root, self.daemon.config(), signals);
        info!("{}, {}", self.describe(), waker.describe());
        self.notify.send("READY=1");
        loop {
            let began = Instant::now();
            let pass = self.daemon.pass();
            self.daemon.take_not_timed().iter().for_each(|why| info!("{why}"));
            if let Some(reporter) = &mut self.reporter {
                reporter.note(&pass);
            }
            if !report(&pass) {
                break;
            }
            self.dirty |= !pass.done.is_empty();
            if self.dirty && self.saved.elapsed() >= SAVE_EVERY {
                self.save();
            }
            waker.filling = self.daemon.filling();
            waker.sharing = self.daemon.sharing();
            let mut event = self.wait(began + self.daemon.pause(), &mut waker)?;
            if matches!(event, Some(Event::Pressure | Event::Filling | Event::Due)) {
                if event == Some(Event::Pressure) {
                    self.daemon.alarm();
                }
                // Memory pressure does not make passes exceed our share of a processor.
                waker.filling = Filling::default();
                waker.sharing = Vec::new();
                let earliest = began + self.daemon.least_pause();
                let mut pressed = false;
                event = next_order(earliest, &mut pressed, || self.wait(earliest, &mut waker))?;
                if pressed {
                    self.daemon.alarm();
                }
            }
            match event {
                Some(Event::Stop) => break,
                Some(Event::Reload) => {
                    self.reload();
                    waker = Waker::new(self.root, self.daemon.config(), signals);
                }
                Some(Event::Pressure | Event::Filling | Event::Due) | None => {}
            }
        }
        Ok(())
    }

    /// Returns the policy, and the sources of its data, in one line.
    fn describe(&self) -> String {
        let config = self.daemon.config();
        let policy = match config.policy.as_str() {
            OWN => OWN.to_string(),
            published => format!("{published} at {}", config.pace.describe()),
        };
        format!("policy {policy}, {}, {}", self.daemon.sampling(), self.daemon.costing())
    }

    fn stop(&mut self) {
        self.notify.send("STOPPING=1");
        // The state is saved before the undoing, too: that takes time, and the service manager may
        // lose patience.
        self.save();
        let undone = self.daemon.stop();
        if !undone.is_empty() {
            let split = undone.iter().filter(|done| done.outcome.obtained == Obtained::Done).count();
            info!("{split} of {} regions that were promoted are split again", undone.len());
            self.save();
        }
    }

    /// Waits for `end`; an event ends the wait earlier.
    fn wait(&mut self, end: Instant, waker: &mut Waker<'_>) -> Result<Option<Event>, ServiceError> {
        loop {
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                // An event that has come meanwhile should not wait for a whole pass.
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
            if self.daemon.take_due() {
                return Ok(Some(Event::Due));
            }
        }
    }

    fn reload(&mut self) {
        let micros = monotonic_time().as_micros();
        self.notify.send(&format!("RELOADING=1\nMONOTONIC_USEC={micros}"));
        let taken = self.options.source.load_by(Config::reread).map_err(ServiceError::from);
        let taken = taken.and_then(|config| {
            if config.lock_file != self.daemon.config().lock_file || config.log != self.daemon.config().log {
                warn!("lock_file and [log] are taken over when the daemon is started again");
            }
            let metrics = config.metrics.clone();
            self.daemon.reload(config)?;
            Ok(metrics)
        });
        match taken {
            Ok(metrics) => {
                info!("configuration read again: policy {}", self.daemon.config().policy);
                self.daemon.cost_warning().iter().for_each(|warning| warn!("{warning}"));
                let reloaded = self.reporter.as_mut().map(|reporter| reporter.reload(&metrics));
                if let Some(Err(error)) = reloaded {
                    warn!("metrics stay as they were: {error}");
                }
                if let Err(error) = set_nice(self.daemon.config().nice) {
                    warn!("the priority cannot be set: {error}");
                }
                self.daemon.config().ignored.iter().for_each(|warning| warn!("{warning}"));
            }
            Err(error) => warn!("the former configuration stays in force: {error}"),
        }
        self.notify.send("READY=1");
    }

    fn recall(&mut self) {
        let path = &self.daemon.config().state_file;
        if self.options.dry_run || path.as_os_str().is_empty() {
            return;
        }
        match SavedState::read(path, &self.boot, effective_uid()) {
            Ok(saved) => self.daemon.restore(&saved),
            Err(error) => warn!("{} is skipped: {error}", path.display()),
        }
    }

    fn save(&mut self) {
        let path = self.daemon.config().state_file.clone();
        if self.options.dry_run || path.as_os_str().is_empty() {
            return;
        }
        self.saved = Instant::now();
        self.dirty = false;
        if let Err(error) = self.daemon.saved_state().write(&path, &self.boot) {
            warn!("{}: cannot be written: {error}; cool-downs are lost in a restart", path.display());
        }
    }
}

/// Waits for `earliest`; only an order ends the wait earlier. Notes a shortage of memory, which the
/// kernel reports only once.
fn next_order(
    earliest: Instant,
    pressed: &mut bool,
    mut wait: impl FnMut() -> Result<Option<Event>, ServiceError>,
) -> Result<Option<Event>, ServiceError> {
    loop {
        match wait()? {
            Some(Event::Pressure) => *pressed = true,
            Some(Event::Filling | Event::Due) => {}
            order => return Ok(order),
        }
        if Instant::now() >= earliest {
            return Ok(None);
        }
    }
}

fn actuator(root: &KernelRoot, dry_run: bool) -> Result<Box<dyn Actuator>, ExecuteError> {
    if dry_run {
        return Ok(Box::new(DryRun));
    }
    let executor = Executor::start(root)?;
    executor.abilities().notes.iter().for_each(|note| info!("{note}"));
    Ok(Box::new(executor))
}

/// Events that a wait between passes can end with.
struct Waker<'a> {
    signals: &'a Signals,
    trigger: Option<Trigger>,
    root: &'a KernelRoot,
    filling: Filling,
    sharing: Vec<Watched>,
    look: Duration,
    watchdog: Option<(Duration, Instant)>,
    notify: Notify,
}

impl<'a> Waker<'a> {
    fn new(root: &'a KernelRoot, config: &Config, signals: &'a Signals) -> Waker<'a> {
        let trigger = Trigger::on_memory(root, STALL, WITHIN).or_else(|_| {
            let longer = UNPRIVILEGED_WINDOW.as_secs_f64() / WITHIN.as_secs_f64();
            Trigger::on_memory(root, STALL.mul_f64(longer), UNPRIVILEGED_WINDOW)
        });
        let notify = Notify::from_environment();
        // Sent at once, and again well before the deadline.
        notify.send("WATCHDOG=1");
        let watchdog = notify.watchdog().map(|every| (every / 3, Instant::now()));
        let look = config.pressure.look;
        Waker {
            signals,
            trigger: trigger.ok(),
            root,
            filling: Filling::default(),
            sharing: Vec::new(),
            look,
            watchdog,
            notify,
        }
    }

    fn describe(&self) -> &'static str {
        match self.trigger {
            Some(_) => "woken by memory pressure",
            None => "not woken by memory pressure: the kernel does not tell, or not us",
        }
    }

    /// Waits for at most `time`. Returns the event that has come.
    fn wait(&mut self, time: Duration) -> io::Result<Option<Event>> {
        let end = Instant::now() + time;
        loop {
            let left = end.saturating_duration_since(Instant::now());
            let mut slice = left.min(self.look);
            if let Some((every, last)) = &mut self.watchdog {
                if last.elapsed() >= *every {
                    self.notify.send("WATCHDOG=1");
                    *last = Instant::now();
                }
                slice = slice.min(every.saturating_sub(last.elapsed()));
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
                None if self.filling.is_news(self.root) => return Ok(Some(Event::Filling)),
                None if have_ended(self.root, &mut self.sharing) => return Ok(Some(Event::Due)),
                None => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn between_two_passes_only_orders_end_the_wait_and_no_alarm_is_lost() {
        let soon = Instant::now() + Duration::from_secs(600);
        let run = |earliest: Instant, events: &[Option<Event>]| {
            let (mut events, mut pressed) = (events.iter().copied(), false);
            let next = || Ok(events.next().expect("no further wait"));
            let order = next_order(earliest, &mut pressed, next).unwrap();
            assert_eq!(events.next(), None, "all waits were made");
            (order, pressed)
        };
        let news = [Some(Event::Due), Some(Event::Pressure), Some(Event::Filling)];
        assert_eq!(run(soon, &[&news[..], &[None]].concat()), (None, true));
        assert_eq!(run(soon, &[&news[..], &[Some(Event::Reload)]].concat()), (Some(Event::Reload), true));
        assert_eq!(run(soon, &[Some(Event::Stop)]), (Some(Event::Stop), false));
        // Memory that stays short does not keep it waiting.
        assert_eq!(run(Instant::now(), &[Some(Event::Pressure)]), (None, true));
    }
}
