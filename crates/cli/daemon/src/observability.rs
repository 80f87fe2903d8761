//! Options of the daemon's reports on itself.

use megapage_kernel::runtime_directory::runtime_file;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::fmt::Display;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::str::FromStr;

/// Section `[metrics]`: access to values and decisions, and their number.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct MetricsConfig {
    /// Unix socket that answers `megapage top`, Prometheus and curl over HTTP; empty for none.
    #[serde(serialize_with = "megapage_kernel::json_path::escaped")]
    pub socket: PathBuf,
    /// Rights of that socket, in octal digits: the users who may connect.
    pub socket_mode: Mode,
    /// Group of that socket, by name or number; empty for the daemon's group.
    pub socket_group: String,
    /// Loopback address and port that is answered as well, such as `127.0.0.1:9781`; empty for
    /// none. Every local user can connect to it. Other addresses are refused: the reports are not
    /// for the network.
    pub listen: Listen,
    /// File that the metrics are written to every few seconds, for node_exporter's textfile
    /// collector. Its name ends in `.prom`; empty for none. It is removed when the daemon stops.
    #[serde(deserialize_with = "textfile", serialize_with = "megapage_kernel::json_path::escaped")]
    pub textfile: PathBuf,
    /// Most processes with metrics each, 0 to 1000: those with most huge memory, or most memory
    /// moved.
    #[serde(deserialize_with = "processes")]
    pub processes: usize,
}

impl Default for MetricsConfig {
    fn default() -> MetricsConfig {
        MetricsConfig {
            socket: default_socket(),
            socket_mode: Mode(0o600),
            socket_group: String::new(),
            listen: Listen(None),
            textfile: PathBuf::new(),
            processes: 20,
        }
    }
}

/// Returns the socket on which a daemon listens unless it is configured otherwise.
pub fn default_socket() -> PathBuf {
    runtime_file("daemon.sock")
}

/// Section `[log]`: messages on standard error.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogConfig {
    /// Level: `error`, `warn`, `info` (passes that did something), `debug` (each action) or `trace`
    /// (each pass).
    pub level: LogLevel,
    /// Format: `text`, or `json` with one object a line.
    pub format: LogFormat,
}

/// Level up to which messages are logged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogLevel {
    /// Faults that stop the daemon.
    Error,
    /// Faults that the daemon survives.
    Warn,
    /// Passes that did something, each in one line, and the processes that they acted on.
    #[default]
    Info,
    /// Each action.
    Debug,
    /// Each pass.
    Trace,
}

/// Form of a line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum LogFormat {
    /// Time, level, message, `key=value`.
    #[default]
    Text,
    /// One JSON object a line.
    Json,
}

/// Rights of a file, written in octal digits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mode(pub u32);

/// A loopback address, or none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Listen(pub Option<SocketAddr>);

impl FromStr for Mode {
    type Err = String;

    fn from_str(text: &str) -> Result<Mode, String> {
        let digits = !text.is_empty() && text.bytes().all(|byte| (b'0'..=b'7').contains(&byte));
        match u32::from_str_radix(text, 8) {
            // A user who may write can connect; the other bits mean nothing on a socket.
            Ok(mode) if digits && mode <= 0o777 => Ok(Mode(mode)),
            _ => Err(format!("'{text}' is no mode of a file: give octal digits such as \"0660\"")),
        }
    }
}

impl Display for Mode {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(to, "{:04o}", self.0)
    }
}

impl FromStr for Listen {
    type Err = String;

    fn from_str(text: &str) -> Result<Listen, String> {
        if text.is_empty() {
            return Ok(Listen(None));
        }
        let address: SocketAddr = text.parse().map_err(|_| {
            format!("'{text}' is no address and port: give one such as 127.0.0.1:9781 or [::1]:9781")
        })?;
        match address.ip().to_canonical().is_loopback() {
            true => Ok(Listen(Some(address))),
            false => Err(format!(
                "{text} is not a loopback address: give one such as 127.0.0.1:9781; to be scraped from elsewhere, use \
                 textfile with node_exporter, or a proxy that asks for a password"
            )),
        }
    }
}

impl Display for Listen {
    fn fmt(&self, to: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(address) => address.fmt(to),
            None => Ok(()),
        }
    }
}

/// Writes and reads a type as text.
macro_rules! as_text {
    ($type:ty) => {
        impl Serialize for $type {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_str(self)
            }
        }

        impl<'de> Deserialize<'de> for $type {
            fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
                String::deserialize(from)?.parse().map_err(D::Error::custom)
            }
        }
    };
}

as_text!(Mode);
as_text!(Listen);

fn textfile<'de, D: Deserializer<'de>>(from: D) -> Result<PathBuf, D::Error> {
    let path = PathBuf::deserialize(from)?;
    if path.as_os_str().is_empty()
        || (path.is_absolute() && path.extension().is_some_and(|end| end == "prom"))
    {
        return Ok(path);
    }
    Err(D::Error::custom(format!(
        "'{}' is no file for node_exporter: give an absolute path that ends in .prom",
        path.display()
    )))
}

fn processes<'de, D: Deserializer<'de>>(from: D) -> Result<usize, D::Error> {
    let found = i64::deserialize(from)?;
    let count = usize::try_from(found).ok().filter(|count| *count <= 1000);
    count.ok_or_else(|| D::Error::custom(format!("{found} is out of range: give 0 to 1000")))
}

#[cfg(test)]
mod tests;
