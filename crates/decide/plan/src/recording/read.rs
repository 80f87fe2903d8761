//! Reading of recordings. A recording may come from anywhere: every line, list and number is
//! bounded.

use super::{Cost, End, HEAT_STEP, Header, Line, Moment, Recording, Service, VERSION, class};
use megapage_units::shown::one_line;
use thiserror::Error;

/// Maximum length of a file, in bytes.
pub const MOST_BYTES: u64 = 256 << 20;
/// Start of a header.
const HEADER: &str = "{\"header\":";
/// Maximum length of a line, in bytes.
const LONGEST_LINE: usize = 256 << 10;
/// Maximum of moments of all recordings in one file.
const MOST_MOMENTS: usize = 200_000;
/// Maximum of services of one moment when reading: more than are written.
const MOST_SERVICES: usize = 256;
/// Maximum length of a word, in bytes.
const LONGEST_WORD: usize = 128;
/// Maximum length of a sentence, in bytes, and maximum of sentences.
const LONGEST_LINE_OF_TEXT: usize = 400;
const MOST_SENTENCES: usize = 32;
/// Maximum size: 1 PiB.
const MOST_MEMORY: u64 = 1 << 50;
/// Maximum duration of a recording, in seconds: ten years.
const LONGEST: f64 = 3.2e8;
/// Maximum share that translation may cost.
const MOST_COST: f64 = 0.95;
/// Maximum of processors.
const MOST_PROCESSORS: f64 = 65_536.0;

/// Reason for which a file is not a recording.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum ReadError {
    /// It does not begin with a header.
    #[error(
        "not a recording: it does not begin with a header; megapage record writes one, and \
             recordings of Prometheus are not read"
    )]
    NoRecording,
    /// A later megapage has written it.
    #[error("line {line}: a recording of version {found}; this megapage reads version {VERSION}")]
    Version {
        /// Number of the line, from 1.
        line: usize,
        /// Version of the recording.
        found: u32,
    },
    /// A line is invalid.
    #[error("line {line}: {what}")]
    Line {
        /// Number of the line, from 1.
        line: usize,
        /// Fault of the line.
        what: String,
    },
}

/// Notes about a file that was still readable, one line each.
pub type Notes = Vec<String>;

/// Reads the recordings of one file. Ignores a torn last line, as after a crash, with a note. It
/// also ignores a torn line before a header, which starts a new recording after a crash.
pub fn read(text: &str) -> Result<(Vec<Recording>, Notes), ReadError> {
    let mut recordings: Vec<Recording> = Vec::new();
    let mut notes = Notes::new();
    let mut moments = 0;
    // Number and fault of a line that may turn out to be torn.
    let mut torn: Option<(usize, String)> = None;
    for (number, line) in text.split_inclusive('\n').enumerate() {
        let number = number + 1;
        let whole = line.ends_with('\n');
        let line = line.trim();
        if line.is_empty() {
            continue;
        }
        let read = match whole {
            true => parse(line),
            false => Err("it has no end".into()),
        };
        if let Some((at, what)) = torn.take() {
            if !matches!(read, Ok(Line::Header(_))) {
                return Err(ReadError::Line { line: at, what });
            }
            notes.push(format!("line {at} is torn ({what}) and was ignored"));
        }
        match read {
            Ok(Line::Header(header)) => {
                if header.version != VERSION {
                    return Err(ReadError::Version { line: number, found: header.version });
                }
                check_header(&header).map_err(|what| ReadError::Line { line: number, what })?;
                recordings.push(Recording { header, moments: Vec::new(), end: None });
            }
            Err(what) if recordings.is_empty() && whole && line.starts_with(HEADER) => {
                return Err(ReadError::Line { line: number, what });
            }
            Ok(_) | Err(_) if recordings.is_empty() => return Err(ReadError::NoRecording),
            Ok(Line::Moment(moment)) => {
                moments += 1;
                if moments > MOST_MOMENTS {
                    let what = format!("more than {MOST_MOMENTS} moments");
                    return Err(ReadError::Line { line: number, what });
                }
                let Some(recording) = recordings.last_mut() else { return Err(ReadError::NoRecording) };
                check_moment(recording, &moment).map_err(|what| ReadError::Line { line: number, what })?;
                recording.moments.push(moment);
            }
            Ok(Line::End(end)) => {
                let Some(recording) = recordings.last_mut() else { return Err(ReadError::NoRecording) };
                check_end(&end).map_err(|what| ReadError::Line { line: number, what })?;
                recording.end = Some(end);
            }
            Err(what) => torn = Some((number, what)),
        }
    }
    if recordings.is_empty() {
        return Err(ReadError::NoRecording);
    }
    if let Some((at, what)) = torn {
        notes.push(format!("the last line, {at}, is torn ({what}) and was ignored"));
    }
    Ok((recordings, notes))
}

fn parse(line: &str) -> Result<Line, String> {
    if line.len() > LONGEST_LINE {
        return Err(format!("it is longer than {LONGEST_LINE} bytes"));
    }
    // An error of serde may quote the line: the first part is enough.
    serde_json::from_str(line).map_err(|error| one_line(&error.to_string()).chars().take(120).collect())
}

fn check_header(header: &Header) -> Result<(), String> {
    word(&header.host, "host")?;
    for (text, name) in [(&header.kernel, "kernel"), (&header.processor, "processor")] {
        sentence(text, name)?;
    }
    for text in [&header.thp, &header.tracker, &header.costs].into_iter().flatten() {
        word(text, "a setting")?;
    }
    if header.lacks.len() > MOST_SENTENCES {
        return Err("it lacks too much".into());
    }
    header.lacks.iter().try_for_each(|text| sentence(text, "lacks"))?;
    size(header.memory, "memory")?;
    amount(header.every, LONGEST, "every")?;
    amount(header.budget, 1.0, "budget")?;
    if header.start as f64 > 1e11 || f64::from(header.processors) > MOST_PROCESSORS {
        return Err("the start or the number of processors is out of range".into());
    }
    let tlb = &header.tlb;
    let entries = [tlb.first_base, tlb.first_2m, tlb.first_1g, tlb.second, tlb.second_1g];
    if entries.iter().any(|count| *count > 1 << 20) {
        return Err("a TLB has at most 1048576 entries".into());
    }
    Ok(())
}

fn check_moment(recording: &Recording, moment: &Moment) -> Result<(), String> {
    amount(moment.at, LONGEST, "at")?;
    amount(moment.span, LONGEST, "span")?;
    amount(moment.own, LONGEST * MOST_PROCESSORS, "own")?;
    if moment.span > moment.at + 1e-6 {
        return Err("a moment spans no more than the recording so far".into());
    }
    if recording.moments.last().is_some_and(|last| last.at >= moment.at) {
        return Err("moments ascend".into());
    }
    size(moment.available, "available")?;
    if let Some(share) = moment.fragmentation {
        amount(share, 1.0, "fragmentation")?;
    }
    for pool in [moment.pool_2m, moment.pool_1g] {
        if pool[1] > pool[0] || pool[0] > MOST_MEMORY >> 21 {
            return Err("a pool has at most as many free pages as pages".into());
        }
    }
    if moment.services.len() > MOST_SERVICES {
        return Err(format!("a moment has at most {MOST_SERVICES} services"));
    }
    moment.services.iter().try_for_each(|service| check_service(service, moment.span))?;
    let mut ids: Vec<&str> = moment.services.iter().map(|service| service.id.as_str()).collect();
    ids.sort_unstable();
    match ids.windows(2).find(|pair| pair[0] == pair[1]) {
        Some(_) => Err("a moment names a service twice".into()),
        None => Ok(()),
    }
}

fn check_service(service: &Service, span: f64) -> Result<(), String> {
    word(&service.id, "a service")?;
    if let Some(app) = &service.app {
        word(app, "app")?;
    }
    amount(service.cpu, span.max(1.0) * MOST_PROCESSORS, "cpu")?;
    let sizes = [
        service.resident,
        service.anonymous,
        service.shared,
        service.file,
        service.huge,
        service.hugetlb,
        service.could,
        service.fill,
        service.grown,
        service.shrunk,
    ];
    sizes.into_iter().try_for_each(|bytes| size(bytes, "a size"))?;
    if u64::from(service.need) > MOST_MEMORY >> 21 || service.giant > service.need {
        return Err("need and giant are pages of the same memory".into());
    }
    if let Some(name) = &service.class
        && class(name).is_none()
    {
        return Err("class is streaming, random or dependent".into());
    }
    if service.heat.len() > usize::from(512 / HEAT_STEP) + 1 {
        return Err("heat has more steps than a region has".into());
    }
    for heat in &service.heat {
        if heat.pages > 512 || heat.regions > 1 << 28 {
            return Err("heat is of 0 to 512 pages".into());
        }
        amount(heat.visits, 1e15, "visits")?;
    }
    service.cost.map_or(Ok(()), check_cost)
}

fn check_cost(cost: Cost) -> Result<(), String> {
    let all = [cost.low, cost.likely, cost.high];
    all.into_iter().try_for_each(|share| amount(share, MOST_COST, "a cost"))?;
    match all.is_sorted() {
        true => Ok(()),
        false => Err("a cost is low, likely, high, ascending".into()),
    }
}

fn check_end(end: &End) -> Result<(), String> {
    amount(end.at, LONGEST, "at")?;
    amount(end.own, LONGEST * MOST_PROCESSORS, "own")?;
    amount(end.longest, LONGEST, "longest")?;
    word(&end.why, "why")
}

fn amount(value: f64, most: f64, name: &str) -> Result<(), String> {
    match value.is_finite() && (0.0..=most).contains(&value) {
        true => Ok(()),
        false => Err(format!("{name} is 0 to {most}")),
    }
}

fn size(bytes: u64, name: &str) -> Result<(), String> {
    if bytes <= MOST_MEMORY { Ok(()) } else { Err(format!("{name} is at most 1 PiB")) }
}

fn word(text: &str, name: &str) -> Result<(), String> {
    let is_word = !text.is_empty() && text.len() <= LONGEST_WORD && !text.chars().any(is_unfit);
    if is_word { Ok(()) } else { Err(format!("{name} is a word of at most {LONGEST_WORD} bytes")) }
}

fn sentence(text: &str, name: &str) -> Result<(), String> {
    let fits = text.len() <= LONGEST_LINE_OF_TEXT && !text.chars().any(|c| c.is_control());
    if fits { Ok(()) } else { Err(format!("{name} is a line of at most {LONGEST_LINE_OF_TEXT} bytes")) }
}

fn is_unfit(c: char) -> bool {
    c.is_control() || c.is_whitespace()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::synthetic::{header, moment};

    fn recording() -> Recording {
        let mut recording = Recording { header: header("h1", 1000), moments: Vec::new(), end: None };
        recording.moments = vec![moment(0.0, 0.0), moment(60.0, 60.0), moment(120.0, 60.0)];
        recording.end = Some(End { at: 120.0, own: 0.3, longest: 60.0, why: "time".into() });
        recording
    }

    #[test]
    fn what_is_written_is_read() {
        let recording = recording();
        let (read, notes) = super::read(&recording.text()).unwrap();
        assert_eq!((read, notes), (vec![recording], Vec::new()));
    }

    #[test]
    fn a_torn_last_line_is_ignored_with_a_note_wherever_it_is_torn() {
        let whole = recording();
        let text = whole.text();
        let start_of_last = text.trim_end().rfind('\n').unwrap() + 1;
        for end in [start_of_last + 1, text.len() - 8, text.len() - 1] {
            let (read, notes) = super::read(&text[..end]).unwrap();
            assert_eq!(read[0].moments, whole.moments, "{end}");
            assert!(read[0].end.is_none() && notes.len() == 1 && notes[0].contains("torn"), "{notes:?}");
        }
        // The recorder continues in the same file.
        let gone_on = format!("{}\n{text}", &text[..text.len() - 8]);
        let (read, notes) = super::read(&gone_on).unwrap();
        assert_eq!((read.len(), notes.len()), (2, 1), "{notes:?}");
    }

    #[test]
    fn what_is_no_recording_is_refused_with_its_line() {
        let text = recording().text();
        let with = |from: &str, to: &str| {
            assert!(text.contains(from), "{from} in {text}");
            super::read(&text.replacen(from, to, 1)).unwrap_err().to_string()
        };
        assert!(super::read("").unwrap_err().to_string().contains("not a recording"));
        assert!(super::read("hello\n").unwrap_err().to_string().contains("not a recording"));
        assert!(with("\"version\":1", "\"version\":7").contains("version 7"));
        assert!(with("\"version\":1,", "").starts_with("line 1: missing field `version`"));
        assert!(with("\"host\":\"h1\"", "\"host\":\"h\\u001b[2J\"").starts_with("line 1: host is a word"));
        assert!(with("\"at\":60.0", "\"at\":-60.0").starts_with("line 3: at is 0 to"));
        assert!(with("\"at\":60.0", "\"at\":120.0").contains("line 4: moments ascend"));
        assert!(with("\"likely\":0.2", "\"likely\":0.99").contains("a cost is 0 to 0.95"));
        assert!(with("\"likely\":0.2", "\"likely\":0.01").contains("ascending"));
        assert!(with("\"id\":\"b\"", "\"id\":\"a\"").contains("twice"));
        assert!(with("\"moment\":{\"at\":60.0", "\"moment\":{\"at\":sixty").contains("line 3"));
        let long = format!("{}{{\"moment\":\"{}\"}}\n{{}}\n", recording().text(), "x".repeat(LONGEST_LINE));
        assert!(super::read(&long).unwrap_err().to_string().contains("longer than"));
    }
}
