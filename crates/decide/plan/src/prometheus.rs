//! Recordings through Prometheus. A moment becomes metrics for node_exporter's textfile collector.
//! A saved answer of `/api/v1/query_range` becomes recordings.

use crate::recording::{Cost, Header, Heat, Moment, Notes, ReadError, Recording, Service, VERSION, read};
use megapage_tlb::{Geometry, GeometrySource};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write;

/// Prefix of every metric's name.
const PREFIX: &str = "megapage_record_";
/// Maximum of hosts that are read, and of series.
const MOST_HOSTS: usize = 10_000;
const MOST_SERIES: usize = 2_000_000;
/// Length of a hole in the data, in usual steps.
const HOLE: f64 = 2.5;

/// Counters since the start of recording, by service, from which a collector computes rates.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Totals {
    /// Processor seconds.
    pub cpu: BTreeMap<String, f64>,
}

/// Maximum of services with stored sums. Beyond it, services that have gone are forgotten and
/// restart at 0: a counter may.
const MOST_TOTALS: usize = 4096;

impl Totals {
    /// Adds the processor time of a moment.
    pub fn add(&mut self, moment: &Moment) {
        if self.cpu.len() > MOST_TOTALS {
            self.cpu.retain(|id, _| moment.services.iter().any(|service| service.id == *id));
        }
        for service in &moment.services {
            *self.cpu.entry(service.id.clone()).or_default() += service.cpu;
        }
    }
}

/// Returns a moment in the text format of Prometheus (0.0.4). A service without a cost in `moment`
/// gets no metric of it; the caller may put the last known cost there.
pub fn exposition(header: &Header, moment: &Moment, totals: &Totals) -> String {
    let mut families = Families::default();
    let mut host = |name: &str, help: &str, labels: &str, value: f64| {
        families.add(name, "gauge", help, labels.to_string(), value);
    };
    host("host_memory_bytes", "All memory", "", header.memory as f64);
    host("host_available_bytes", "Memory that new programs can have", "", moment.available as f64);
    host("host_processors", "Processors that are online", "", f64::from(header.processors));
    let tlb = &header.tlb;
    for (level, entries) in [
        ("first_base", tlb.first_base),
        ("first_2m", tlb.first_2m),
        ("first_1g", tlb.first_1g),
        ("second", tlb.second),
        ("second_1g", tlb.second_1g),
    ] {
        let labels = format!("level=\"{level}\"");
        host("host_tlb_entries", "Entries of the TLBs of one processor", &labels, f64::from(entries));
    }
    if let Some(share) = moment.fragmentation {
        host("host_fragmentation_ratio", "Share of free memory unusable for 2 MiB pages", "", share);
    }
    families.add("cpu_seconds_total", "counter", "Processor time of recording", String::new(), moment.own);
    moment.services.iter().for_each(|service| families.add_service(service, totals));
    families.text()
}

/// Metrics by name, so that each is announced only once.
#[derive(Default)]
struct Families(BTreeMap<String, Family>);

/// Values of one metric, by labels.
struct Family {
    kind: &'static str,
    help: String,
    samples: Vec<(String, f64)>,
}

impl Families {
    fn add(&mut self, name: &str, kind: &'static str, help: &str, labels: String, value: f64) {
        let new = || Family { kind, help: help.to_string(), samples: Vec::new() };
        self.0.entry(format!("{PREFIX}{name}")).or_insert_with(new).samples.push((labels, value));
    }

    fn add_service(&mut self, service: &Service, totals: &Totals) {
        let app = service.app.as_deref().unwrap_or_default();
        let own = format!("service=\"{}\",app=\"{}\"", escaped(&service.id), escaped(app));
        let cpu = totals.cpu.get(&service.id).copied().unwrap_or(service.cpu);
        self.add("service_cpu_seconds_total", "counter", "Processor time of a service", own.clone(), cpu);
        let mut gauge = |name: &str, help: &str, label: &str, value: f64| {
            let labels = if label.is_empty() { own.clone() } else { format!("{own},{label}") };
            self.add(name, "gauge", help, labels, value);
        };
        gauge("service_processes", "Processes of a service", "", f64::from(service.processes));
        for (kind, bytes) in [
            ("resident", service.resident),
            ("anonymous", service.anonymous),
            ("shared", service.shared),
            ("file", service.file),
            ("huge", service.huge),
            ("hugetlb", service.hugetlb),
            ("could", service.could),
            ("fill", service.fill),
        ] {
            gauge("service_memory_bytes", "Memory of a service", &format!("kind=\"{kind}\""), bytes as f64);
        }
        for (kind, pages) in [("need", service.need), ("giant", service.giant)] {
            let help = "Pages of 2 MiB (need) or 1 GiB (giant) that would hold the memory of a service";
            gauge("service_huge_pages", help, &format!("kind=\"{kind}\""), f64::from(pages));
        }
        for (flag, is_set) in [("forks", service.forks), ("thp_off", service.off)] {
            gauge(
                "service_flag",
                "What a service does",
                &format!("flag=\"{flag}\""),
                f64::from(u8::from(is_set)),
            );
        }
        for heat in &service.heat {
            let label = format!("pages=\"{}\"", heat.pages);
            gauge("service_regions", "Regions by accessed base pages", &label, f64::from(heat.regions));
            gauge("service_visits", "Visits of their pages per processor second", &label, heat.visits);
        }
        if let Some(class) = &service.class {
            gauge(
                "service_class",
                "How it goes through its memory",
                &format!("class=\"{}\"", escaped(class)),
                1.0,
            );
        }
        if let Some(cost) = service.cost {
            for (bound, share) in [("low", cost.low), ("likely", cost.likely), ("high", cost.high)] {
                let label = format!("bound=\"{bound}\",measured=\"{}\"", cost.measured);
                gauge(
                    "service_translation_ratio",
                    "Processor time that address translation costs",
                    &label,
                    share,
                );
            }
        }
    }

    fn text(&self) -> String {
        let mut text = String::new();
        for (name, Family { kind, help, samples }) in &self.0 {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "# HELP {name} {help}.\n# TYPE {name} {kind}");
            for (labels, value) in samples {
                let braces = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
                let _ = writeln!(text, "{name}{braces} {value}");
            }
        }
        text
    }
}

fn escaped(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

/// Returns true if a file is an answer of Prometheus, and not a recording.
pub fn is_answer(text: &str) -> bool {
    let start: String = text.chars().filter(|c| !c.is_whitespace()).take(10).collect();
    start.starts_with("{\"status\"") || start.starts_with("{\"data\"")
}

#[derive(Deserialize)]
struct Answer {
    #[serde(default)]
    status: String,
    #[serde(default)]
    error: String,
    data: Option<Data>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Data {
    result_type: String,
    result: Vec<Series>,
}

#[derive(Deserialize)]
struct Series {
    metric: BTreeMap<String, String>,
    #[serde(default)]
    values: Vec<(f64, String)>,
}

/// Reads recordings from the saved answer of `/api/v1/query_range`: one for each `instance`.
pub fn read_answer(text: &str) -> Result<(Vec<Recording>, Notes), ReadError> {
    let fail = |what: String| ReadError::Line { line: 1, what };
    let answer: Answer = serde_json::from_str(text)
        .map_err(|error| fail(format!("not an answer of Prometheus: {error}").chars().take(160).collect()))?;
    if answer.status != "success" {
        let what: String = answer.error.chars().filter(|c| !c.is_control()).take(120).collect();
        return Err(fail(format!("Prometheus answered with an error: {what}")));
    }
    let Some(data) = answer.data else { return Err(fail("the answer of Prometheus has no data".into())) };
    if data.result_type != "matrix" {
        return Err(fail("the answer is no range: ask /api/v1/query_range".into()));
    }
    if data.result.len() > MOST_SERIES {
        return Err(fail(format!("more than {MOST_SERIES} series")));
    }
    let mut hosts: BTreeMap<String, HostSeries> = BTreeMap::new();
    for series in &data.result {
        let label = |name: &str| series.metric.get(name).map(String::as_str).unwrap_or_default();
        let Some(name) = label("__name__").strip_prefix(PREFIX) else { continue };
        let host = match label("instance") {
            "" => "unknown".to_string(),
            host => host.to_string(),
        };
        if hosts.len() >= MOST_HOSTS && !hosts.contains_key(&host) {
            return Err(fail(format!("more than {MOST_HOSTS} instances")));
        }
        let host = hosts.entry(host).or_default();
        for (time, value) in &series.values {
            let value: f64 = value.parse().map_err(|_| fail(format!("a value of {name} is no number")))?;
            if !value.is_finite() || !time.is_finite() || *time < 0.0 || *time > 1e11 {
                // Prometheus writes unknown values as NaN.
                continue;
            }
            host.add((time * 1000.0) as u64, name, &label, value);
        }
    }
    if hosts.is_empty() {
        return Err(fail(format!("no metric in it begins with {PREFIX}")));
    }
    let mut recordings = Vec::new();
    let mut notes = Notes::new();
    for (name, host) in hosts {
        let text = host.recording(name).text();
        // Applies the same bounds as to a file of `megapage record`.
        let (read, more) = read(&text)?;
        recordings.extend(read);
        notes.extend(more);
    }
    Ok((recordings, notes))
}

/// Values of one host by time, in milliseconds.
#[derive(Default)]
struct HostSeries {
    moments: BTreeMap<u64, HostAt>,
    tlb: BTreeMap<String, u32>,
    memory: u64,
    processors: u32,
    measured: bool,
}

#[derive(Default)]
struct HostAt {
    available: u64,
    fragmentation: Option<f64>,
    own: f64,
    services: BTreeMap<String, At>,
}

/// A service at one time. The processor time is the value of the counter.
#[derive(Default)]
struct At {
    service: Service,
    cpu: Option<f64>,
    cost: [Option<f64>; 3],
    heat: BTreeMap<u16, Heat>,
}

impl HostSeries {
    fn add<'a>(&mut self, time: u64, name: &str, label: &dyn Fn(&str) -> &'a str, value: f64) {
        let bytes = value.clamp(0.0, 1e18) as u64;
        let count = value.clamp(0.0, f64::from(u32::MAX)) as u32;
        let at = self.moments.entry(time).or_default();
        match name {
            "host_memory_bytes" => self.memory = self.memory.max(bytes),
            "host_processors" => self.processors = self.processors.max(count),
            "host_tlb_entries" => drop(self.tlb.insert(label("level").to_string(), count)),
            "host_available_bytes" => at.available = bytes,
            "host_fragmentation_ratio" => at.fragmentation = Some(value.clamp(0.0, 1.0)),
            "cpu_seconds_total" => at.own = value.max(0.0),
            _ => {
                let (Some(name), id) = (name.strip_prefix("service_"), label("service")) else { return };
                if id.is_empty() {
                    return;
                }
                let at = at.services.entry(id.to_string()).or_default();
                at.service.app = Some(label("app").to_string()).filter(|app| !app.is_empty());
                self.measured |= at.add(name, label, value, bytes, count);
            }
        }
    }

    fn recording(self, host: String) -> Recording {
        let entries = |level: &str, otherwise: u32| self.tlb.get(level).copied().unwrap_or(otherwise);
        let fallback = Geometry::FALLBACK;
        let tlb = Geometry {
            first_base: entries("first_base", fallback.first_base),
            first_2m: entries("first_2m", fallback.first_2m),
            first_1g: entries("first_1g", fallback.first_1g),
            second: entries("second", fallback.second),
            second_1g: entries("second_1g", fallback.second_1g),
            source: GeometrySource::Model,
        };
        let times: Vec<u64> = self.moments.keys().copied().collect();
        let start = times.first().copied().unwrap_or(0);
        let step = step(&times);
        let mut totals: BTreeMap<String, f64> = BTreeMap::new();
        let (mut last, mut first_own) = (None, None);
        let mut moments = Vec::new();
        for (time, at) in self.moments {
            let since = last.map(|last: u64| (time - last) as f64 / 1000.0);
            let span = since.filter(|span| *span <= HOLE * step).unwrap_or(0.0);
            last = Some(time);
            let first_own = *first_own.get_or_insert(at.own);
            let mut services: Vec<Service> =
                at.services.into_iter().map(|(id, at)| at.service(id, span, &mut totals)).collect();
            services.sort_by(|one, other| other.resident.cmp(&one.resident).then(one.id.cmp(&other.id)));
            services.truncate(crate::recording::MOST_SERVICES);
            moments.push(Moment {
                at: (time - start) as f64 / 1000.0,
                span,
                available: at.available,
                fragmentation: at.fragmentation,
                // The counter restarts at 0 with the recorder.
                own: (at.own - first_own).max(0.0),
                services,
                ..Moment::default()
            });
        }
        let header = Header {
            version: VERSION,
            host,
            start: start / 1000,
            every: step.clamp(0.0, 1e8),
            budget: 0.0,
            named: true,
            kernel: String::new(),
            processor: String::new(),
            processors: self.processors,
            memory: self.memory,
            tlb,
            thp: None,
            tracker: None,
            costs: Some(if self.measured { "measured" } else { "estimated" }.into()),
            lacks: Vec::new(),
        };
        Recording { header, moments, end: None }
    }
}

/// Returns the usual time from one value to the next, in seconds.
fn step(times: &[u64]) -> f64 {
    let mut steps: Vec<u64> = times.windows(2).map(|pair| pair[1] - pair[0]).collect();
    steps.sort_unstable();
    steps.get(steps.len() / 2).map_or(0.0, |step| *step as f64 / 1000.0)
}

impl At {
    /// Adds a value. Returns true if it says that costs are measured.
    fn add<'a>(
        &mut self,
        name: &str,
        label: &dyn Fn(&str) -> &'a str,
        value: f64,
        bytes: u64,
        count: u32,
    ) -> bool {
        let service = &mut self.service;
        match name {
            "cpu_seconds_total" => self.cpu = Some(value.max(0.0)),
            "processes" => service.processes = count,
            "memory_bytes" => {
                let field = match label("kind") {
                    "resident" => &mut service.resident,
                    "anonymous" => &mut service.anonymous,
                    "shared" => &mut service.shared,
                    "file" => &mut service.file,
                    "huge" => &mut service.huge,
                    "hugetlb" => &mut service.hugetlb,
                    "could" => &mut service.could,
                    "fill" => &mut service.fill,
                    _ => return false,
                };
                *field = bytes;
            }
            "huge_pages" if label("kind") == "need" => service.need = count,
            "huge_pages" => service.giant = count,
            "flag" if label("flag") == "forks" => service.forks = value > 0.0,
            "flag" => service.off = value > 0.0,
            "class" if value > 0.0 => service.class = Some(label("class").to_string()),
            "regions" | "visits" => {
                let Ok(pages) = label("pages").parse() else { return false };
                let heat = self.heat.entry(pages).or_insert(Heat { pages, regions: 0, visits: 0.0 });
                match name {
                    "regions" => heat.regions = count,
                    _ => heat.visits = value.max(0.0),
                }
            }
            "translation_ratio" => {
                let bound = ["low", "likely", "high"].iter().position(|bound| *bound == label("bound"));
                if let Some(bound) = bound {
                    self.cost[bound] = Some(value);
                }
                return label("measured") == "true";
            }
            _ => {}
        }
        false
    }

    fn service(self, id: String, span: f64, totals: &mut BTreeMap<String, f64>) -> Service {
        let total = self.cpu.unwrap_or(0.0);
        let before = totals.insert(id.clone(), total);
        // A counter that has fallen has restarted.
        let cpu = match before {
            Some(before) if span > 0.0 && total >= before => total - before,
            Some(_) if span > 0.0 => total,
            _ => 0.0,
        };
        let cost = match self.cost {
            [Some(low), Some(likely), Some(high)] => Some(Cost { low, likely, high, measured: false }),
            _ => None,
        };
        Service { id, cpu, cost, heat: self.heat.into_values().collect(), ..self.service }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{HostModel, fleet};

    /// Returns the answer of Prometheus if it had collected these moments.
    fn answer(recording: &Recording) -> String {
        let mut series: BTreeMap<String, Vec<String>> = BTreeMap::new();
        let mut totals = Totals::default();
        for moment in &recording.moments {
            totals.add(moment);
            let time = recording.header.start as f64 + moment.at;
            let text = exposition(&recording.header, moment, &totals);
            for line in text.lines().filter(|line| !line.starts_with('#')) {
                let (name, value) = line.rsplit_once(' ').unwrap();
                series.entry(name.to_string()).or_default().push(format!("[{time},\"{value}\"]"));
            }
        }
        let results: Vec<String> = series
            .into_iter()
            .map(|(name, values)| {
                let (name, labels) = name.trim_end_matches('}').split_once('{').unwrap_or((&name, ""));
                let labels: String = labels
                    .split(',')
                    .filter(|label| !label.is_empty())
                    .map(|label| {
                        let (key, value) = label.split_once('=').unwrap();
                        format!(",\"{key}\":{value}")
                    })
                    .collect();
                let metric =
                    format!("{{\"__name__\":\"{name}\",\"instance\":\"h\",\"job\":\"node\"{labels}}}");
                format!("{{\"metric\":{metric},\"values\":[{}]}}", values.join(","))
            })
            .collect();
        format!(
            "{{\"status\":\"success\",\"data\":{{\"resultType\":\"matrix\",\"result\":[{}]}}}}",
            results.join(",")
        )
    }

    #[test]
    fn what_prometheus_collected_is_what_was_recorded() {
        let [recording] = &fleet(&[HostModel::plain("h", 0.3)])[..] else { panic!("one host") };
        let text = answer(recording);
        assert!(is_answer(&text) && !is_answer(&recording.text()));
        let (read, notes) = read_answer(&text).unwrap();
        assert!(notes.is_empty(), "{notes:?}");
        let [read] = &read[..] else { panic!("one instance") };
        assert_eq!(read.header.tlb.second, recording.header.tlb.second);
        assert_eq!((read.header.memory, read.header.processors), (16 << 30, 8));
        assert_eq!(read.moments.len(), recording.moments.len());
        for (read, recorded) in read.moments.iter().zip(&recording.moments) {
            let (one, other) = (&read.services[0], &recorded.services[0]);
            assert!((one.cpu - other.cpu).abs() < 1e-9 && read.span == recorded.span);
            assert_eq!(Service { cpu: other.cpu, ..one.clone() }, *other);
        }
    }

    #[test]
    fn sums_of_services_that_have_gone_are_forgotten() {
        let mut totals = Totals::default();
        for number in 0..=2 * MOST_TOTALS {
            let service = Service { id: number.to_string(), cpu: 1.0, ..Service::default() };
            totals.add(&Moment { services: vec![service], ..Moment::default() });
            assert!(totals.cpu.len() <= MOST_TOTALS + 1);
        }
    }

    #[test]
    fn a_hole_and_a_counter_that_began_anew_are_no_work() {
        let [recording] = &fleet(&[HostModel::plain("h", 0.3)])[..] else { panic!("one host") };
        let mut with_hole = recording.clone();
        with_hole.moments.drain(10..40);
        let (read, _) = read_answer(&answer(&with_hole)).unwrap();
        let seconds: f64 = read[0].moments.iter().map(|moment| moment.span).sum();
        assert_eq!(seconds, 90.0 * 60.0 - 60.0);
        let cpu: f64 = read[0].moments.iter().map(|moment| moment.services[0].cpu).sum();
        assert!((cpu - 0.5 * seconds).abs() < 1e-6, "{cpu} of {seconds}");
    }

    #[test]
    fn what_is_no_answer_is_refused_in_one_line() {
        let error = |text: &str| read_answer(text).unwrap_err().to_string();
        assert!(error("{\"status\":\"success\"").contains("not an answer of Prometheus"));
        assert!(error("{\"status\":\"error\",\"error\":\"no\\u001b[2J\"}").ends_with("an error: no[2J"));
        assert!(error("{\"status\":\"success\"}").contains("no data"));
        let vector = "{\"status\":\"success\",\"data\":{\"resultType\":\"vector\",\"result\":[]}}";
        assert!(error(vector).contains("query_range"));
        assert!(error(&vector.replace("vector", "matrix")).contains("megapage_record_"));
        let [recording] = &fleet(&[HostModel::plain("h", 0.3)])[..] else { panic!("one host") };
        let text = answer(recording);
        assert!(
            error(&text.replacen("\"256\"", "\"many\"", 1).replacen("0.3\"", "many\"", 1))
                .contains("no number")
        );
        assert!(error(&text.replace("\"0.3\"", "\"0.97\"")).contains("a cost is"));
    }
}
