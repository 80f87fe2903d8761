//! A client of redis-server that speaks its protocol (RESP 2). It makes calls one by one, at full
//! speed, or at a fixed rate with the latency of each.

use anyhow::{Context, Result, anyhow, bail};
use megapage_bench::random::Random;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Longest wait for an answer: a script that fills the server takes seconds.
const LONGEST: Duration = Duration::from_secs(120);
/// Connections of a load at a fixed rate.
const CONNECTIONS: usize = 4;
/// Requests under way at once at full speed.
const PIPELINE: u64 = 32;

/// A connection.
#[derive(Debug)]
pub(super) struct Connection {
    stream: UnixStream,
    answers: BufReader<UnixStream>,
}

impl Connection {
    pub(super) fn open(socket: &Path) -> Result<Connection> {
        let stream = UnixStream::connect(socket).context("redis-server's socket")?;
        stream.set_read_timeout(Some(LONGEST)).context("redis-server's socket")?;
        let answers = BufReader::new(stream.try_clone().context("redis-server's socket")?);
        Ok(Connection { stream, answers })
    }

    /// Makes one request, and returns the answer as text. Fails if the server answers with an
    /// error.
    pub(super) fn call(&mut self, words: &[&str]) -> Result<String> {
        let mut bytes = Vec::new();
        encode(words, &mut bytes);
        self.stream.write_all(&bytes).context("redis-server takes no request")?;
        answer(&mut self.answers)
    }

    /// Reads random ones of `keys` values for `time`, at full speed. Returns their number.
    pub(super) fn read_for(&mut self, keys: u64, time: Duration) -> Result<u64> {
        let (start, mut random, mut count) = (Instant::now(), Random::new(7), 0);
        let mut bytes = Vec::new();
        while start.elapsed() < time {
            bytes.clear();
            for _ in 0..PIPELINE {
                encode(&["GET", &key(random.below(keys as usize) as u64)], &mut bytes);
            }
            self.stream.write_all(&bytes).context("redis-server takes no request")?;
            for _ in 0..PIPELINE {
                answer(&mut self.answers)?;
            }
            count += PIPELINE;
        }
        Ok(count)
    }
}

/// Returns a key's name.
pub(super) fn key(number: u64) -> String {
    format!("key:{number:012}")
}

fn encode(words: &[&str], bytes: &mut Vec<u8>) {
    bytes.extend(format!("*{}\r\n", words.len()).bytes());
    for word in words {
        bytes.extend(format!("${}\r\n{word}\r\n", word.len()).bytes());
    }
}

/// Reads one answer: a line, a number or a string.
fn answer(answers: &mut impl BufRead) -> Result<String> {
    let mut line = String::new();
    if answers.read_line(&mut line).context("redis-server's answer")? == 0 {
        bail!("redis-server has closed the connection");
    }
    let line = line.trim_end();
    let rest = line.get(1..).unwrap_or_default().to_string();
    match line.as_bytes().first() {
        Some(b'+' | b':') => Ok(rest),
        Some(b'-') => Err(anyhow!("redis-server answered: {rest}")),
        Some(b'$') if rest == "-1" => Ok(String::new()),
        Some(b'$') => {
            let length: usize = rest.parse().context("redis-server's answer")?;
            let mut bytes = vec![0; length + 2];
            answers.read_exact(&mut bytes).context("redis-server's answer")?;
            bytes.truncate(length);
            Ok(String::from_utf8_lossy(&bytes).into_owned())
        }
        _ => bail!("redis-server answered with '{line}'"),
    }
}

/// One request of a load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    /// The time at which it was sent.
    pub(super) sent: Instant,
    /// The time until its answer had been read.
    pub(super) took: Duration,
}

/// Requests at a fixed rate, for any speed of the server: half of them read, half write, to random
/// keys. The next is sent even if the last was not answered, so that a stall delays all requests
/// that fall into it.
#[derive(Debug)]
pub(super) struct Load {
    stop: Arc<AtomicBool>,
    sender: JoinHandle<Result<()>>,
    readers: Vec<JoinHandle<Result<Vec<Asked>>>>,
}

impl Load {
    /// Starts `rate` requests a second over `keys` keys with values of `bytes` bytes.
    pub(super) fn start(socket: &Path, keys: u64, bytes: usize, rate: u32, seed: u64) -> Result<Load> {
        let stop = Arc::new(AtomicBool::new(false));
        let (mut streams, mut sent, mut readers) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..CONNECTIONS {
            let connection = Connection::open(socket)?;
            let (sender, receiver) = channel();
            streams.push(connection.stream);
            sent.push(sender);
            readers.push(std::thread::spawn(move || read(connection.answers, &receiver)));
        }
        let ends = Arc::clone(&stop);
        let period = Duration::from_secs(1) / rate;
        let sender = std::thread::spawn(move || {
            let (start, mut random) = (Instant::now(), Random::new(seed));
            let (value, mut request) = ("y".repeat(bytes), Vec::new());
            for number in 0u32.. {
                let due = start + period * number;
                if let Some(early) = due.checked_duration_since(Instant::now()) {
                    std::thread::sleep(early);
                }
                if ends.load(Ordering::Relaxed) {
                    break;
                }
                request.clear();
                let name = key(random.below(keys as usize) as u64);
                match random.bits() & 1 {
                    0 => encode(&["GET", &name], &mut request),
                    _ => encode(&["SET", &name, &value], &mut request),
                }
                let at = number as usize % CONNECTIONS;
                sent[at].send(Instant::now()).map_err(|_| anyhow!("a reader has ended"))?;
                streams[at].write_all(&request).context("redis-server takes no request")?;
            }
            Ok(())
        });
        Ok(Load { stop, sender, readers })
    }

    /// Sends no more, waits for the answers, and returns them.
    pub(super) fn stop(self) -> Result<Vec<Asked>> {
        self.stop.store(true, Ordering::Relaxed);
        let panicked = |_| anyhow!("a thread of the client has panicked");
        let sent = self.sender.join().map_err(panicked)?;
        let mut all = Vec::new();
        for reader in self.readers {
            all.extend(reader.join().map_err(panicked)??);
        }
        sent.map(|()| all)
    }
}

fn read(mut answers: BufReader<UnixStream>, sent: &Receiver<Instant>) -> Result<Vec<Asked>> {
    let mut all = Vec::new();
    for sent in sent {
        answer(&mut answers)?;
        all.push(Asked { sent, took: sent.elapsed() });
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_and_answers_are_as_the_protocol_wants_them() {
        let mut bytes = Vec::new();
        encode(&["GET", &key(42)], &mut bytes);
        assert_eq!(bytes, b"*2\r\n$3\r\nGET\r\n$16\r\nkey:000000000042\r\n");
        let mut answers = &b"+OK\r\n:12\r\n$3\r\nx\r\n\r\n$-1\r\n-ERR no\r\n*0\r\n"[..];
        let mut next = || answer(&mut answers).map_err(|error| error.to_string());
        assert_eq!(next().as_deref(), Ok("OK"));
        assert_eq!(next().as_deref(), Ok("12"));
        assert_eq!(next().as_deref(), Ok("x\r\n"));
        assert_eq!(next().as_deref(), Ok(""));
        assert_eq!(next(), Err("redis-server answered: ERR no".into()));
        assert_eq!(next(), Err("redis-server answered with '*0'".into()));
        assert_eq!(next(), Err("redis-server has closed the connection".into()));
    }
}
