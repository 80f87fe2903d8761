//! Numbers from a server: Prometheus, or a page in its format.

use serde_json::Value as Json;
use std::time::Duration;
use ureq::Agent;

/// Largest number of bytes read from an answer.
const MOST: u64 = 16 << 20;

/// A number read by HTTP.
pub(crate) struct Source {
    agent: Agent,
    what: What,
}

enum What {
    Query { url: String, query: String },
    Page { url: String, selector: Selector },
}

/// The series with one name that have all of these labels.
#[derive(Debug, PartialEq, Eq)]
struct Selector {
    name: String,
    labels: Vec<(String, String)>,
}

impl Source {
    /// Returns the source for an instant query.
    pub fn query(url: &str, query: &str, patience: Duration) -> Source {
        let url = format!("{}/api/v1/query", url.trim_end_matches('/'));
        Source { agent: agent(patience), what: What::Query { url, query: query.into() } }
    }

    /// Returns the source for the sum of the matching series on a page.
    pub fn scrape(url: &str, name: &str, patience: Duration) -> Result<Source, String> {
        let selector = Selector::parse(name)
            .ok_or_else(|| format!("'{name}' names no series: write NAME or NAME{{label=\"value\",...}}"))?;
        Ok(Source { agent: agent(patience), what: What::Page { url: url.into(), selector } })
    }

    /// Reads the present number.
    pub fn read(&mut self) -> Result<f64, String> {
        let request = match &self.what {
            What::Query { url, query } => self.agent.get(url).query("query", query),
            What::Page { url, .. } => self.agent.get(url),
        };
        let mut answer = request.call().map_err(|error| error.to_string())?;
        let status = answer.status().as_u16();
        let text = answer.body_mut().with_config().limit(MOST).read_to_string();
        let text = text.map_err(|error| error.to_string())?;
        match &self.what {
            What::Query { .. } => sample(&text).map_err(|why| match status {
                200 => why,
                _ => format!("status {status}: {why}"),
            }),
            What::Page { .. } if status != 200 => Err(format!("status {status}")),
            What::Page { selector, .. } => selector.sum(&text),
        }
    }
}

/// Returns a client with a time limit and without a proxy. A status is no error, for Prometheus
/// explains a failure in its answer.
fn agent(patience: Duration) -> Agent {
    let config = Agent::config_builder()
        .timeout_global(Some(patience))
        .http_status_as_error(false)
        .max_redirects(2)
        .proxy(None)
        .build();
    config.into()
}

/// Returns the one sample of an answer (Prometheus, "HTTP API").
fn sample(text: &str) -> Result<f64, String> {
    let answer: Json = serde_json::from_str(text).map_err(|_| "the answer is not that of Prometheus")?;
    if answer["status"] != "success" {
        return Err(answer["error"].as_str().unwrap_or("the query failed").to_string());
    }
    let result = &answer["data"]["result"];
    let value = match answer["data"]["resultType"].as_str() {
        Some("scalar") => &result[1],
        Some("vector") => match result.as_array().map(Vec::len) {
            Some(1) => &result[0]["value"][1],
            Some(0) | None => return Err("the query has no result".into()),
            Some(many) => return Err(format!("the query has {many} results: aggregate them, as by sum()")),
        },
        _ => return Err("the query gives neither a vector nor a scalar".into()),
    };
    value.as_str().and_then(|text| text.parse().ok()).ok_or_else(|| "the result is no number".into())
}

impl Selector {
    fn parse(text: &str) -> Option<Selector> {
        let (name, labels) = match text.split_once('{') {
            None => (text, Vec::new()),
            Some((name, rest)) => (name, labels(rest.strip_suffix('}')?)?),
        };
        let sound = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
        (!name.is_empty() && name.chars().all(sound)).then(|| Selector { name: name.into(), labels })
    }

    /// Returns the sum of the matching series. Fails if there are none.
    fn sum(&self, page: &str) -> Result<f64, String> {
        let values: Vec<f64> = page.lines().filter_map(|line| self.value(line)).collect();
        match values.is_empty() {
            true => Err(format!("the page has no series {}", self.name)),
            false => Ok(values.iter().sum()),
        }
    }

    /// Returns the value in a line `name{labels} value timestamp`, if its series matches.
    fn value(&self, line: &str) -> Option<f64> {
        let rest = line.strip_prefix(self.name.as_str())?;
        let (found, values) = match rest.strip_prefix('{') {
            // A label's value may hold a brace: the last brace ends the labels.
            Some(rest) => {
                let (labels_text, values) = rest.rsplit_once('}')?;
                (labels(labels_text)?, values)
            }
            None if rest.starts_with([' ', '\t']) => (Vec::new(), rest),
            None => return None,
        };
        if !self.labels.iter().all(|label| found.contains(label)) {
            return None;
        }
        values.split_whitespace().next()?.parse().ok()
    }
}

/// Reads `a="b",c="d"`, with backslashes before quotes and backslashes.
fn labels(mut text: &str) -> Option<Vec<(String, String)>> {
    let mut found = Vec::new();
    loop {
        text = text.trim_start_matches([',', ' ']);
        if text.is_empty() {
            return Some(found);
        }
        let (name, rest) = text.split_once("=\"")?;
        let mut value = String::new();
        let mut escaped = false;
        let end = rest.char_indices().find_map(|(at, c)| {
            match c {
                _ if escaped => {
                    value.push(if c == 'n' { '\n' } else { c });
                    escaped = false;
                }
                '\\' => escaped = true,
                '"' => return Some(at),
                _ => value.push(c),
            }
            None
        })?;
        found.push((name.trim().to_string(), value));
        text = &rest[end + 1..];
    }
}

#[cfg(test)]
mod tests;
