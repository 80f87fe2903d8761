//! Name of a service in a recording: a keyed hash, unless the user asks for names.

use megapage_kernel::trusted::read_regular;
use megapage_launch::applications::Application;
use sha2::{Digest, Sha256};
use std::io;
use std::io::Read;
use std::path::{Path, PathBuf};
use thiserror::Error;

/// Block of SHA-256, in bytes.
const BLOCK: usize = 64;
/// Bytes of a hash that are kept. With these 48 bits, two of a thousand names are the same once in
/// half a billion times.
const KEPT: usize = 6;
/// Shortest key that a file may hold, in bytes; then the longest file.
const LEAST_KEY: usize = 16;
const MOST_KEY: u64 = 4096;
/// File that identifies an installation (machine-id(5)).
const MACHINE_ID: &str = "/etc/machine-id";
/// Longest name, in bytes.
const LONGEST: usize = 100;

/// Reason why there is no key.
#[derive(Debug, Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("{}: {source}", path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// Error of the read.
        source: io::Error,
    },
    /// The key is short.
    #[error("{}: a key has at least {LEAST_KEY} bytes; make one with: head -c 32 /dev/urandom > KEY", .0.display())]
    Short(PathBuf),
    /// No random key could be drawn.
    #[error("no random key: {0}; give one with --key-file")]
    Random(io::Error),
}

/// Giver of names to services.
#[derive(Clone, Debug)]
pub struct Namer {
    key: Vec<u8>,
    named: bool,
}

impl Namer {
    /// Creates a namer with the key in this file, so that a service has the same name on all hosts
    /// of a fleet. Without a file the key is random, and only for this recording. With `named`,
    /// services keep their names.
    pub fn new(key_file: Option<&Path>, named: bool) -> Result<Namer, KeyError> {
        let key = match key_file {
            Some(path) => {
                let key = read_regular(path, MOST_KEY)
                    .map_err(|source| KeyError::File { path: path.into(), source })?;
                if key.len() < LEAST_KEY {
                    return Err(KeyError::Short(path.into()));
                }
                key
            }
            None => {
                let mut key = vec![0; 32];
                let read = std::fs::File::open("/dev/urandom").and_then(|mut file| file.read_exact(&mut key));
                read.map_err(KeyError::Random)?;
                key
            }
        };
        Ok(Namer { key, named })
    }

    /// Returns true if services keep their names.
    pub fn is_named(&self) -> bool {
        self.named
    }

    /// Returns the name of a service in the recording.
    pub fn name(&self, service: &str) -> String {
        match self.named {
            true => fit(service),
            false => format!("s-{}", self.hash("service", service)),
        }
    }

    /// Returns the name of this host: always a hash.
    pub fn host(&self) -> String {
        let id = std::fs::read_to_string(MACHINE_ID).unwrap_or_default();
        format!("h-{}", self.hash("host", id.trim()))
    }

    fn hash(&self, kind: &str, text: &str) -> String {
        let message = [kind.as_bytes(), b"\0", text.as_bytes()].concat();
        hmac(&self.key, &message)[..KEPT].iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Computes HMAC with SHA-256 (RFC 2104).
fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut block = [0u8; BLOCK];
    if key.len() > BLOCK {
        block[..32].copy_from_slice(&Sha256::digest(key));
    } else {
        block[..key.len()].copy_from_slice(key);
    }
    let pad = |with: u8| block.map(|byte| byte ^ with);
    let inner = Sha256::new().chain_update(pad(0x36)).chain_update(message).finalize();
    Sha256::new().chain_update(pad(0x5c)).chain_update(inner).finalize().into()
}

/// Returns the service of a process: the systemd unit of its control group, without instance; else
/// its executable.
pub(crate) fn service_of(cgroup: &str, executable: &str) -> String {
    let unit = cgroup.rsplit('/').find_map(|part| part.strip_suffix(".service"));
    match unit {
        // A user's manager is no service: the programs that it starts have their own units, or
        // none.
        Some(unit) if !unit.starts_with("user@") && !unit.is_empty() => {
            unit.split_once('@').map_or(unit, |(prefix, _)| prefix).to_string()
        }
        _ => executable.to_string(),
    }
}

/// Returns the known software that a service runs, by its unit or executable.
pub(crate) fn app_of(service: &str, executable: &str) -> Option<&'static str> {
    let known = Application::of_program(executable).or_else(|| Application::of_unit(service))?;
    known.names.first().copied()
}

/// Returns the name as one word of bounded length.
fn fit(name: &str) -> String {
    let word: String =
        name.chars().map(|c| if c.is_whitespace() || c.is_control() { '_' } else { c }).collect();
    let end = (0..=LONGEST.min(word.len())).rev().find(|at| word.is_char_boundary(*at)).unwrap_or(0);
    if end == 0 { "unnamed".into() } else { word[..end].into() }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namer(key: &[u8], named: bool) -> Namer {
        Namer { key: key.to_vec(), named }
    }

    #[test]
    fn the_hash_is_that_of_the_standard() {
        // RFC 4231, test cases 2 and 6.
        let hex = |bytes: [u8; 32]| bytes.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
        let second = hmac(b"Jefe", b"what do ya want for nothing?");
        assert_eq!(hex(second), "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
        let sixth = hmac(&[0xaa; 131], b"Test Using Larger Than Block-Size Key - Hash Key First");
        assert_eq!(hex(sixth), "60e431591ee0b67f0d8a26aacbf5b77f8e0bc6213728c5140546040f0ee37f54");
    }

    #[test]
    fn a_name_is_a_hash_of_the_key_unless_names_are_asked_for() {
        let one = namer(b"0123456789abcdef", false);
        assert_eq!(one.name("postgresql"), one.name("postgresql"));
        assert_ne!(one.name("postgresql"), one.name("redis"));
        assert_ne!(one.name("postgresql"), namer(b"another key......", false).name("postgresql"));
        assert!(one.name("postgresql").len() == 14 && !one.name("postgresql").contains("postgres"));
        assert_eq!(namer(b"x", true).name("a b\x1b"), "a_b_");
        assert_eq!(namer(b"x", true).name(""), "unnamed");
        assert_eq!(namer(b"x", true).name(&"ü".repeat(80)).len(), 100);
        assert!(namer(b"x", true).host().starts_with("h-"), "a host has no name, whatever was asked for");
    }

    #[test]
    fn a_service_is_a_unit_or_an_executable() {
        for (cgroup, expected) in [
            ("/system.slice/redis-server.service", "redis-server"),
            ("/system.slice/system-postgresql.slice/postgresql@15-main.service", "postgresql"),
            ("/user.slice/user-1000.slice/user@1000.service/app.slice/sync.service", "sync"),
            ("/user.slice/user-1000.slice/user@1000.service/init.scope", "exe"),
            ("/user.slice/user-1000.slice/session-3.scope", "exe"),
            ("/kubepods.slice/kubepods-pod1234.slice/cri-containerd-ab12.scope", "exe"),
            ("/", "exe"),
            ("", "exe"),
        ] {
            assert_eq!(service_of(cgroup, "exe"), expected, "{cgroup}");
        }
        assert_eq!(app_of("postgresql", "postgres"), Some("postgres"));
        assert_eq!(app_of("valkey", "anything"), Some("redis-server"));
        assert_eq!(app_of("own", "own"), None);
    }

    #[test]
    fn keys_are_read_and_short_ones_refused() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("key");
        let error = || Namer::new(Some(&path), false).unwrap_err().to_string();
        assert!(error().contains("No such file"));
        std::fs::write(&path, "short").unwrap();
        assert!(error().contains("at least 16 bytes"));
        std::fs::write(&path, [7; 32]).unwrap();
        let of_file = |_| Namer::new(Some(&path), false).unwrap().name("x");
        assert_eq!(of_file(1), of_file(2));
        let random = || Namer::new(None, false).unwrap().name("x");
        assert_ne!(random(), random());
    }
}
