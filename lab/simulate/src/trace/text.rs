//! The text form of a trace: one operation a line, values in decimal, addresses in hexadecimal.

use super::{Invalid, Operation, Program, Span, Trace, Writer};
use megapage_snapshot::AccessClass;
use megapage_units::Bytes;
use std::fmt::Write;
use std::str::{FromStr, SplitWhitespace};
use thiserror::Error;

/// The version that is written. It rises when a line changes its meaning.
pub const VERSION: u32 = 1;
const MAGIC: &str = "megapage-trace";

/// Failure to read a trace.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ReadError {
    /// The first line is not `megapage-trace N`.
    #[error("line 1: not a trace: it does not begin with 'megapage-trace {VERSION}'")]
    NoTrace,
    /// A later megapage has written it.
    #[error("line 1: a trace of version {0}; this megapage reads version {VERSION}")]
    Version(u32),
    /// A line is invalid.
    #[error("line {line}: {what}")]
    Line {
        /// Its number, from 1.
        line: usize,
        /// The fault.
        what: String,
    },
    /// All lines are well-formed, but the trace is invalid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
}

/// Writes the trace as text. Reading it gives the same trace.
pub fn write(trace: &Trace) -> String {
    let mut text = format!("{MAGIC} {VERSION}\n");
    // Writing to a string cannot fail.
    let mut line = |line: std::fmt::Arguments<'_>| {
        let _ = writeln!(text, "{line}");
    };
    if !trace.origin.is_empty() {
        line(format_args!("origin {}", trace.origin.replace('\n', " ")));
    }
    if let Some(memory) = trace.memory {
        line(format_args!("memory {}", memory.0));
    }
    if let Some(fragmentation) = trace.fragmentation {
        line(format_args!("fragmentation {fragmentation}"));
    }
    for program in &trace.processes {
        line(format_args!("process {} {}", program.name, program.start));
        for operation in &program.operations {
            match operation {
                Operation::Phase(name) => line(format_args!("phase {name}")),
                Operation::Map { span, address } => line(format_args!("map {} {address:x}", Show(*span))),
                Operation::Touch { span, pages, content, own_ns } => {
                    line(format_args!("touch {} {pages} {content} {own_ns}", Show(*span)));
                }
                Operation::Populate { span, pages } => {
                    line(format_args!("populate {} {pages}", Show(*span)));
                }
                Operation::Fill { span, writer, own_ns } => {
                    let keyword = match writer {
                        Writer::Program => "fill",
                        Writer::Kernel => "receive",
                    };
                    line(format_args!("{keyword} {} {own_ns}", Show(*span)));
                }
                Operation::Free { span, keep, own_ns } => {
                    line(format_args!("free {} {keep} {own_ns}", Show(*span)));
                }
                Operation::Unmap { span } => line(format_args!("unmap {}", Show(*span))),
                Operation::Access { span, pages, visits, class } => {
                    line(format_args!("access {} {pages} {visits} {}", Show(*span), class.name()));
                }
                Operation::Work { seconds } => line(format_args!("work {seconds}")),
                Operation::Idle { seconds } => line(format_args!("idle {seconds}")),
                Operation::Repeat { times } => line(format_args!("repeat {times}")),
                Operation::Mark => line(format_args!("mark")),
            }
        }
    }
    text
}

struct Show(Span);

impl std::fmt::Display for Show {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.0.first, self.0.count)
    }
}

/// Reads the text form, and checks the trace.
pub fn read(text: &str) -> Result<Trace, ReadError> {
    let mut lines = text.lines().enumerate();
    let version = lines.next().and_then(|(_, line)| line.strip_prefix(MAGIC)).map(str::trim);
    let version: u32 = version.and_then(|version| version.parse().ok()).ok_or(ReadError::NoTrace)?;
    if version != VERSION {
        return Err(ReadError::Version(version));
    }
    let mut trace = Trace::default();
    for (number, line) in lines {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        read_line(&mut trace, line).map_err(|what| ReadError::Line { line: number + 1, what })?;
    }
    trace.check()?;
    Ok(trace)
}

fn read_line(trace: &mut Trace, line: &str) -> Result<(), String> {
    let mut words = Words(line.split_whitespace());
    let keyword = words.word("a keyword")?;
    match keyword {
        "origin" => {
            trace.origin = line["origin".len()..].trim().to_string();
            return Ok(());
        }
        "memory" => trace.memory = Some(Bytes(words.value("bytes")?)),
        "fragmentation" => trace.fragmentation = Some(words.value("a share")?),
        "process" => {
            let name = words.word("a name")?.to_string();
            let start = words.value("seconds")?;
            trace.processes.push(Program { name, start, operations: Vec::new() });
        }
        _ => {
            let operation = operation(keyword, &mut words)?;
            let program = trace.processes.last_mut().ok_or("no 'process' line before it")?;
            program.operations.push(operation);
        }
    }
    words.end()
}

fn operation(keyword: &str, words: &mut Words<'_>) -> Result<Operation, String> {
    Ok(match keyword {
        "phase" => Operation::Phase(words.word("a name")?.to_string()),
        "map" => {
            let span = words.span()?;
            let address = words.word("an address")?;
            let address = u64::from_str_radix(address, 16)
                .map_err(|_| format!("'{address}' is not a hexadecimal address"))?;
            Operation::Map { span, address }
        }
        "touch" => Operation::Touch {
            span: words.span()?,
            pages: words.value("pages")?,
            content: words.value("pages")?,
            own_ns: words.value("nanoseconds")?,
        },
        "populate" => Operation::Populate { span: words.span()?, pages: words.value("pages")? },
        "fill" | "receive" => Operation::Fill {
            span: words.span()?,
            writer: if keyword == "fill" { Writer::Program } else { Writer::Kernel },
            own_ns: words.value("nanoseconds")?,
        },
        "free" => Operation::Free {
            span: words.span()?,
            keep: words.value("a share")?,
            own_ns: words.value("nanoseconds")?,
        },
        "unmap" => Operation::Unmap { span: words.span()? },
        "access" => Operation::Access {
            span: words.span()?,
            pages: words.value("pages")?,
            visits: words.value("visits")?,
            class: class(words.word("a class")?)?,
        },
        "work" => Operation::Work { seconds: words.value("seconds")? },
        "idle" => Operation::Idle { seconds: words.value("seconds")? },
        "repeat" => Operation::Repeat { times: words.value("a number")? },
        "mark" => Operation::Mark,
        _ => return Err(format!("'{keyword}' is no operation; see docs/trace.md")),
    })
}

fn class(word: &str) -> Result<AccessClass, String> {
    [AccessClass::Streaming, AccessClass::Random, AccessClass::Dependent]
        .into_iter()
        .find(|class| class.name() == word)
        .ok_or_else(|| format!("'{word}' is not streaming, random or dependent"))
}

struct Words<'a>(SplitWhitespace<'a>);

impl<'a> Words<'a> {
    fn word(&mut self, what: &str) -> Result<&'a str, String> {
        self.0.next().ok_or_else(|| format!("{what} is missing"))
    }

    fn value<T: FromStr>(&mut self, what: &str) -> Result<T, String> {
        let word = self.word(what)?;
        word.parse().map_err(|_| format!("'{word}' is not {what}"))
    }

    fn span(&mut self) -> Result<Span, String> {
        Ok(Span { first: self.value("a region")?, count: self.value("a number of regions")? })
    }

    fn end(&mut self) -> Result<(), String> {
        match self.0.next() {
            Some(word) => Err(format!("'{word}' is too much")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "\
megapage-trace 1
origin a test
memory 51539607552
fragmentation 0.7
process redis 0
map 0 8 7f0000000000
phase fill
touch 0 8 511 500 120.5
populate 0 8 512
access 0 8 100 2000.25 random
mark
work 1.5
repeat 3
free 0 8 0.2 0
idle 10
unmap 2 1
process other 12.5
access 0 1 1 0 dependent
fill 1 2 0
receive 3 1 250
";

    #[test]
    fn what_is_written_is_read() {
        let trace = read(TEXT).unwrap();
        assert_eq!(write(&trace), TEXT);
        assert_eq!(trace.processes[0].operations.len(), 11);
        assert_eq!(trace.processes[0].regions(), 8);
        assert_eq!(trace.processes[0].seconds(), 16.0);
        // Blank lines and comments are for people.
        let spaced = TEXT.replace("idle 10", "\n  idle 10   # a while\n");
        assert_eq!(read(&spaced).unwrap(), trace);
    }

    #[test]
    fn what_cannot_be_read_is_refused_with_its_line() {
        let with = |from: &str, to: &str| {
            assert!(TEXT.contains(from));
            read(&TEXT.replacen(from, to, 1)).unwrap_err().to_string()
        };
        assert!(with("megapage-trace 1", "hello").contains("not a trace"));
        assert!(with("trace 1", "trace 9").contains("version 9"));
        assert_eq!(with("work 1.5", "work"), "line 12: seconds is missing");
        assert_eq!(with("work 1.5", "work slowly"), "line 12: 'slowly' is not seconds");
        assert_eq!(with("work 1.5", "work 1 2"), "line 12: '2' is too much");
        assert_eq!(with("mark", "flip"), "line 11: 'flip' is no operation; see docs/trace.md");
        assert_eq!(
            with("2000.25 random", "2000.25 wild"),
            "line 10: 'wild' is not streaming, random or dependent"
        );
        assert_eq!(with("process redis 0\n", ""), "line 5: no 'process' line before it");
        assert_eq!(
            with("511 500", "511 512"),
            "process 1 (redis), operation 3: pages are 1 to 512, and content is at most as much"
        );
        assert!(with("0 8 0.2", "0 8 1.2").contains("share from 0 to 1"));
        assert!(with("2000.25", "NaN").contains("visits 0 or more"));
        assert!(with("2000.25", "-1").contains("visits 0 or more"));
        assert!(with("0 8 7f0000000000", "0 8 7f0000001000").contains("not a multiple of 2 MiB"));
        assert!(with("0 8 7f0000000000", "0 8 fff0000000000000").contains("beyond user space"));
        assert!(with("0 8 7f0000000000", "0 8 ffffff200000").contains("beyond user space"), "its end");
        // An address of user space on arm64.
        assert!(read(&TEXT.replacen("0 8 7f0000000000", "0 8 ffff00000000", 1)).is_ok());
        assert!(with("unmap 2 1", "unmap 2 4294967295").contains("64 TiB"));
        assert!(with("unmap 2 1", "unmap 2 0").contains("no regions"));
        assert!(with("fragmentation 0.7", "fragmentation 7").contains("0 to 1"));
    }

    #[test]
    fn repeats_of_repeats_are_bounded() {
        let chain = |count: usize| {
            format!("{MAGIC} {VERSION}\nprocess p 0\nphase x\n{}", "repeat 100\n".repeat(count))
        };
        assert!(read(&chain(3)).is_ok());
        let error = read(&chain(12)).unwrap_err().to_string();
        assert!(error.contains("more than 1e8 operations"), "{error}");
        assert!(read(&chain(400)).is_err());
    }
}
