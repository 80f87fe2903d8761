//! Metrics, as users name them.

use megapage_decide::judge::Better;
use megapage_kernel::cgroup::Resource;
use std::fmt;
use std::str::FromStr;

/// A metric of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Metric {
    /// `requests`: requests for each second of processor time, both counted by the kernel.
    /// [`Metric::Calls`] if the service reads and writes, else [`Metric::Segments`].
    Requests,
    /// `calls`: system calls that read or write.
    Calls,
    /// `segments`: TCP segments that the service's network receives.
    Segments,
    /// `function:[FILE ]NAME`: calls of a function.
    Function(Point),
    /// `latency:[FILE ]NAME`: mean time of a function's calls.
    Latency(Point),
    /// `usdt:[FILE ]PROVIDER:NAME`: passes of a USDT probe, a place that the program announces.
    Usdt(Point),
    /// `prometheus:URL QUERY`: an instant query to the API of Prometheus at that URL.
    Prometheus {
        /// An address such as `http://127.0.0.1:9090`.
        url: String,
        /// A query in PromQL; its result is one sample.
        query: String,
    },
    /// `scrape:URL NAME`: a metric on a page in the format of Prometheus; its series are summed.
    Scrape {
        /// An address such as `http://127.0.0.1:9100/metrics`.
        url: String,
        /// A metric's name, such as `http_requests_total` or `http_requests_total{code="200"}`.
        name: String,
    },
    /// `command:SHELL`: a number that a shell command prints.
    Command(String),
    /// `psi:cpu`, `psi:memory`, `psi:io`: the share of time in which no task waits for the
    /// resource.
    Psi(Resource),
}

/// A place in a program's code.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Point {
    /// A path as the service sees it, or the name of a file that it has mapped. `None`: the program
    /// of its first process.
    pub file: Option<String>,
    /// The provider of a USDT probe; `None` for a function.
    pub provider: Option<String>,
    /// The name of the function or of the USDT probe.
    pub name: String,
}

impl fmt::Display for Point {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.file.iter().try_for_each(|file| write!(f, "{file} "))?;
        self.provider.iter().try_for_each(|provider| write!(f, "{provider}:"))?;
        f.write_str(&self.name)
    }
}

impl FromStr for Metric {
    type Err = String;

    fn from_str(text: &str) -> Result<Metric, String> {
        let incomplete = |what: &str| format!("'{text}': {what}");
        let unknown = || {
            format!(
                "'{text}' is no metric: requests, calls, segments, psi:cpu|memory|io, 'function:[FILE ]NAME', \
                 'latency:[FILE ]NAME', 'usdt:[FILE ]PROVIDER:NAME', 'prometheus:URL QUERY', 'scrape:URL NAME' or \
                 'command:SHELL'"
            )
        };
        // Splits a URL from the query or name behind the first space.
        let two = |rest: &str, what: &str| -> Result<(String, String), String> {
            let (url, asked) = rest.trim().split_once(char::is_whitespace).ok_or_else(|| incomplete(what))?;
            if !url.starts_with("http://") {
                return Err(incomplete("the URL begins with http:// (HTTPS is not supported)"));
            }
            Ok((url.to_string(), asked.trim().to_string()))
        };
        // Splits the last word from the file before it.
        let point = |rest: &str, is_static: bool| -> Result<Point, String> {
            let (file, name) = match rest.trim().rsplit_once(char::is_whitespace) {
                Some((file, name)) => (Some(file.trim().to_string()), name),
                None => (None, rest.trim()),
            };
            let (provider, name) = match name.split_once(':') {
                Some((provider, name)) if is_static && !provider.is_empty() => {
                    (Some(provider.to_string()), name)
                }
                _ if is_static => {
                    return Err(incomplete("PROVIDER:NAME follows, such as postgresql:query__done"));
                }
                _ => (None, name),
            };
            if name.is_empty() {
                return Err(incomplete("a name follows"));
            }
            Ok(Point { file, provider, name: name.to_string() })
        };
        match text.split_once(':') {
            None => match text {
                "requests" => Ok(Metric::Requests),
                "calls" => Ok(Metric::Calls),
                "segments" => Ok(Metric::Segments),
                _ => Err(unknown()),
            },
            Some(("function", rest)) => Ok(Metric::Function(point(rest, false)?)),
            Some(("latency", rest)) => Ok(Metric::Latency(point(rest, false)?)),
            Some(("usdt", rest)) => Ok(Metric::Usdt(point(rest, true)?)),
            Some(("prometheus", rest)) => {
                let (url, query) = two(rest, "a query follows the URL, after a space")?;
                Ok(Metric::Prometheus { url, query })
            }
            Some(("scrape", rest)) => {
                let (url, name) = two(rest, "the metric's name follows the URL, after a space")?;
                Ok(Metric::Scrape { url, name })
            }
            Some(("command", shell)) if shell.trim().is_empty() => Err(incomplete("a shell command follows")),
            Some(("command", shell)) => Ok(Metric::Command(shell.into())),
            Some(("psi", "cpu")) => Ok(Metric::Psi(Resource::Cpu)),
            Some(("psi", "memory")) => Ok(Metric::Psi(Resource::Memory)),
            Some(("psi", "io")) => Ok(Metric::Psi(Resource::Io)),
            Some(_) => Err(unknown()),
        }
    }
}

megapage_units::named! {
    /// Kinds of a metric's values.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Kind {
        /// A growing count: its rate is compared.
        Counter = "counter",
        /// A sampled value: its mean is compared.
        Gauge = "gauge",
    }
}

megapage_units::named! {
    /// Time by which a counter's rate is taken.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Per {
        /// Seconds of the service's processor time.
        Cpu = "cpu",
        /// Seconds by the wall clock.
        Second = "second",
    }
}

/// Options for a metric whose meaning megapage does not know: from Prometheus, a page or a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetricOptions {
    /// The kind: a count or a sample.
    pub kind: Kind,
    /// The unit of the rate; only a count uses it.
    pub per: Per,
    /// The better values: greater or smaller ones.
    pub better: Better,
}

impl Metric {
    /// Returns true if [`MetricOptions`] describe the metric; megapage knows how to read the
    /// others.
    pub fn has_options(&self) -> bool {
        matches!(self, Metric::Prometheus { .. } | Metric::Scrape { .. } | Metric::Command(_))
    }
}

impl fmt::Display for Metric {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Metric::Requests => f.write_str("requests"),
            Metric::Calls => f.write_str("calls"),
            Metric::Segments => f.write_str("segments"),
            Metric::Function(point) => write!(f, "function:{point}"),
            Metric::Latency(point) => write!(f, "latency:{point}"),
            Metric::Usdt(point) => write!(f, "usdt:{point}"),
            Metric::Prometheus { url, query } => write!(f, "prometheus:{url} {query}"),
            Metric::Scrape { url, name } => write!(f, "scrape:{url} {name}"),
            Metric::Command(shell) => write!(f, "command:{shell}"),
            Metric::Psi(resource) => write!(f, "psi:{}", resource.name()),
        }
    }
}

#[cfg(test)]
mod tests;
