//! Answers to requests.

use super::client::{Client, Origin};
use crate::shared::Shared;
use crate::telemetry::metrics::{CLASSIC, OPENMETRICS, classic, openmetrics};
use megapage_kernel::{boot_time, process_cpu_time};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Most headers of a request.
const MOST_HEADERS: usize = 64;
/// Time for which one text of the metrics serves all requests, unless there was a pass. Thereby
/// requests without pause cost no more than rare ones.
const METRICS_LAST: Duration = Duration::from_secs(1);
/// Most decisions in one answer.
const MOST_DECISIONS: usize = 1000;
/// Answer to a browser.
const INDEX: &str = "megapage daemon\n\n\
    GET /metrics           metrics for Prometheus (OpenMetrics where that is accepted)\n\
    GET /status            the daemon, its last pass and the processes, as JSON\n\
    GET /decisions         the last decisions, as JSON; ?since=NUMBER those after it, ?last=COUNT so many at most\n";

/// Body that several clients may be sent at once.
pub(super) type Body = Arc<[u8]>;

/// An answer.
#[derive(Debug)]
pub(super) struct Answer {
    code: u16,
    kind: &'static str,
    body: Body,
    /// True for HEAD: the body is not sent.
    bodiless: bool,
}

impl Answer {
    fn ok(kind: &'static str, body: Body) -> Answer {
        Answer { code: 200, kind, body, bodiless: false }
    }

    pub(super) fn error(code: u16, what: &str) -> Answer {
        Answer {
            code,
            kind: "text/plain; charset=utf-8",
            body: format!("{what}\n").into_bytes().into(),
            bodiless: false,
        }
    }

    pub(super) fn code(&self) -> u16 {
        self.code
    }

    /// Returns the head and the body, as they are sent.
    pub(super) fn into_parts(self) -> (Vec<u8>, Body) {
        let allow = if self.code == 405 { "Allow: GET, HEAD\r\n" } else { "" };
        let head = format!(
            "HTTP/1.1 {} {}\r\nContent-Type: {}\r\nContent-Length: {}\r\nCache-Control: no-store\r\n{allow}\
             X-Content-Type-Options: nosniff\r\nConnection: close\r\n\r\n",
            self.code,
            phrase(self.code),
            self.kind,
            self.body.len()
        );
        (head.into_bytes(), if self.bodiless { Arc::from([]) } else { self.body })
    }
}

fn phrase(code: u16) -> &'static str {
    match code {
        200 => "OK",
        400 => "Bad Request",
        403 => "Forbidden",
        404 => "Not Found",
        405 => "Method Not Allowed",
        408 => "Request Timeout",
        431 => "Request Header Fields Too Large",
        505 => "HTTP Version Not Supported",
        _ => "Error",
    }
}

/// Source of answers, from the noted passes.
#[derive(Debug)]
pub(super) struct Answers {
    shared: Arc<Shared>,
    metrics: Option<Metrics>,
}

/// The text of the metrics, cached for a moment.
#[derive(Debug)]
struct Metrics {
    at: Instant,
    passes: u64,
    openmetrics: Body,
    classic: Body,
}

impl Answers {
    pub(super) fn new(shared: Arc<Shared>) -> Answers {
        Answers { shared, metrics: None }
    }

    /// Counts an answer.
    pub(super) fn count(&self, code: u16) {
        self.shared.answered(code);
    }

    /// Returns the answer to the bytes of a request; `None` if it is not whole yet.
    pub(super) fn answer(&mut self, bytes: &[u8], client: Client) -> Option<Answer> {
        let mut headers = [httparse::EMPTY_HEADER; MOST_HEADERS];
        let mut request = httparse::Request::new(&mut headers);
        match request.parse(bytes) {
            Ok(httparse::Status::Complete(_)) => {}
            Ok(httparse::Status::Partial) => return None,
            Err(httparse::Error::TooManyHeaders) => {
                return Some(Answer::error(431, "the request has too many headers"));
            }
            Err(httparse::Error::Version) => {
                return Some(Answer::error(505, "only HTTP/1.0 and 1.1 are spoken"));
            }
            Err(error) => return Some(Answer::error(400, &format!("this is no HTTP request: {error}"))),
        }
        let header = |name: &str| {
            let found = request.headers.iter().find(|header| header.name.eq_ignore_ascii_case(name));
            found.map(|header| String::from_utf8_lossy(header.value).into_owned())
        };
        // Else a web page whose name resolves to this machine could make a browser read these
        // reports.
        if client.origin == Origin::Loopback && header("host").is_some_and(|host| !is_loopback(&host)) {
            return Some(Answer::error(403, "ask for localhost or a loopback address"));
        }
        let method = request.method.unwrap_or_default();
        if !["GET", "HEAD"].contains(&method) {
            return Some(Answer::error(405, "only GET and HEAD are answered"));
        }
        let accept = header("accept").unwrap_or_default();
        let mut answer = self.get(request.path.unwrap_or_default(), &accept, client.trusted);
        answer.bodiless = method == "HEAD";
        Some(answer)
    }

    fn get(&mut self, target: &str, accept: &str, trusted: bool) -> Answer {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        match path {
            "/metrics" => {
                let metrics = self.metrics();
                match accept.contains("application/openmetrics-text") {
                    true => Answer::ok(OPENMETRICS, Arc::clone(&metrics.openmetrics)),
                    false => Answer::ok(CLASSIC, Arc::clone(&metrics.classic)),
                }
            }
            "/status" => {
                let resident = self.shared.resident();
                // The JSON is written after the lock is released: copying the values out is short.
                let status = self.shared.telemetry().status(boot_time(), process_cpu_time(), resident);
                json(&status)
            }
            "/decisions" => match numbers(query) {
                Ok((since, last)) => {
                    let last = usize::try_from(last).unwrap_or(usize::MAX).min(MOST_DECISIONS);
                    let listed = self.shared.telemetry().decisions(since, last, trusted, boot_time());
                    json(&listed)
                }
                Err(what) => Answer::error(400, &what),
            },
            "/" => Answer::ok("text/plain; charset=utf-8", INDEX.as_bytes().into()),
            _ => Answer::error(404, "there are /metrics, /status and /decisions"),
        }
    }

    fn metrics(&mut self) -> &Metrics {
        let (now, passes) = (Instant::now(), self.shared.telemetry().passes());
        let fresh =
            |kept: &Metrics| kept.passes == passes && now.saturating_duration_since(kept.at) < METRICS_LAST;
        let kept = self.metrics.take().filter(fresh);
        self.metrics.insert(kept.unwrap_or_else(|| {
            let text = openmetrics(&self.shared);
            Metrics {
                at: now,
                passes,
                classic: classic(&text).into_bytes().into(),
                openmetrics: text.into_bytes().into(),
            }
        }))
    }
}

fn json(value: &impl serde::Serialize) -> Answer {
    match serde_json::to_vec(value) {
        Ok(text) => Answer::ok("application/json", text.into()),
        // Plain values with names as keys can always be written.
        Err(error) => Answer::error(404, &format!("this cannot be told: {error}")),
    }
}

/// Returns `since` and `last` of a query; all decisions if they are not given.
fn numbers(query: &str) -> Result<(u64, u64), String> {
    let (mut since, mut last) = (0, u64::MAX);
    for part in query.split('&').filter(|part| !part.is_empty()) {
        let (name, value) = part.split_once('=').unwrap_or((part, ""));
        let number = value.parse().map_err(|_| format!("{name} wants a number"));
        match name {
            "since" => since = number?,
            "last" => last = number?,
            _ => return Err("ask for since=NUMBER or last=COUNT".into()),
        }
    }
    Ok((since, last))
}

/// Returns true if a Host header names this machine in a way that only the machine itself can use.
fn is_loopback(host: &str) -> bool {
    let name = host.trim();
    let bare = name.rsplit_once(':').filter(|(_, port)| port.bytes().all(|byte| byte.is_ascii_digit()));
    let bare = bare.map_or(name, |(bare, _)| bare);
    let address = name
        .parse::<SocketAddr>()
        .map(|address| address.ip())
        .or_else(|_| bare.trim_matches(['[', ']']).parse::<IpAddr>());
    bare.eq_ignore_ascii_case("localhost")
        || address.is_ok_and(|address| address.to_canonical().is_loopback())
}

#[cfg(test)]
mod tests;
