//! Input from programs and their users: options, logs, sizes, traces.

use megapage_act::pool::{Amount, Spec};
use megapage_doctor::Target;
use megapage_kernel::hugetlb::PoolScope;
use megapage_launch::jvm::Java;
use megapage_launch::jvm::need::Need;
use megapage_launch::jvm::options::Options;
use megapage_launch::messages::explain;
use megapage_launch::request::{Fork, Heap, Mechanism, ReturnAfter, Text};
use megapage_plan::fleet::Fleet;
use megapage_plan::recording::{self, Recording};
use megapage_remap::own::Pages;
use megapage_segment::{LONGEST_NAME, Name};
use megapage_simulate::trace;
use megapage_systemd::{commands, parse, rewritten};
use megapage_units::{Bytes, PageSize};
use std::collections::{BTreeMap, BTreeSet};

/// Reads a log for `megapage doctor --log`: each message once, none reported more often than there
/// are lines.
pub fn log(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let found = explain(&text);
    let lines = text.lines().count() as u64;
    assert!(found.iter().map(|message| message.times).sum::<u64>() <= lines);
    for message in &found {
        assert!(message.times > 0 && text.contains(&message.line) && !message.line.contains('\n'));
        assert_eq!(found.iter().filter(|other| other.meaning == message.meaning).count(), 1, "each once");
    }
}

/// Reads a JVM's options, from variables, an argument file and the command line, and the memory
/// that it takes with them. The first line is its `release` file's version, then come two
/// variables; the argument file's text is the remainder.
pub fn jvm(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let mut lines = text.splitn(5, '\n');
    let mut line = || lines.next().unwrap_or_default();
    let mut java = Java::of_release(line());
    let environment = BTreeMap::from([
        ("JAVA_TOOL_OPTIONS".to_string(), line().to_string()),
        ("_JAVA_OPTIONS".to_string(), line().to_string()),
    ]);
    let mut arguments: Vec<String> = line().split(' ').map(str::to_string).collect();
    arguments.insert(0, "@file".into());
    java.argument_files.insert("file".into(), line().to_string());
    for is_java in [true, false] {
        let options = Options::read(&java, &environment, &arguments, is_java);
        assert!((0.0..=100.0).contains(&options.max_ram_percent.unwrap_or(25.0)), "{options:?}");
        for memory in [Bytes::ZERO, Bytes::gib(16), Bytes(u64::MAX)] {
            let need = Need::of(&options, &java, memory);
            assert!(need.total() >= need.heap && need.total() >= need.code_cache, "{need:?}");
            assert!(need.pages(PageSize::HUGE_2M) >= need.beside_heap_pages());
            assert!(!need.describe().is_empty());
        }
    }
}

/// Reads sizes of the command line. A size that is shown is read again as the value shown.
pub fn sizes(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    if let Ok(bytes) = text.parse::<Bytes>() {
        let shown = bytes.to_string();
        // 16 EiB is one byte more than there are, and EiB and PiB are no units of input.
        if bytes.0 < 1 << 50 {
            let again: Bytes = shown.parse().expect("what is shown is read");
            let error = again.0.abs_diff(bytes.0) as f64;
            assert!(error <= bytes.0 as f64 * 0.006 + 1.0, "{} is shown as {shown}", bytes.0);
        }
    }
    if let Ok(size) = text.parse::<PageSize>() {
        assert_eq!(size.to_string().parse(), Ok(size), "what is shown is read");
    }
    if let Ok(ReturnAfter::After(delay)) = text.parse::<ReturnAfter>() {
        assert!(delay.as_secs() <= 24 * 3600);
    }
    if let Ok(name) = text.parse::<Name>() {
        assert!(!name.as_str().contains(['/', '\0']) && name.as_str().len() <= LONGEST_NAME);
        assert!(!name.as_str().starts_with('.'), "no name leads elsewhere");
    }
    if let Ok(target) = text.parse::<Target>() {
        assert!(target.pid.0 > 0);
    }
    if let Ok(heap) = text.parse::<Heap>() {
        assert_eq!(heap.name().parse::<Heap>(), Ok(heap), "what is shown is read");
    }
    if let Ok(fork) = text.parse::<Fork>() {
        assert_eq!(fork.name(), text);
    }
    assert!(Pages::parse(text.as_bytes()).is_none() || text.parse::<Text>().is_ok());
    let _ = text.parse::<Mechanism>();
}

/// Reads a pool on the command line, in our grammar and hugeadm's.
pub fn pool_spec(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(spec) = text.parse::<Spec>() else { return };
    assert_eq!(spec.to_string(), text, "as it was written");
    assert!(!spec.amounts.is_empty());
    let nodes: BTreeSet<u32> = spec
        .amounts
        .iter()
        .filter_map(|(scope, _)| if let PoolScope::Node(node) = scope { Some(*node) } else { None })
        .collect();
    assert!(nodes.len() == spec.amounts.len() || (nodes.is_empty() && spec.amounts.len() == 1), "{spec:?}");
    for (_, amount) in &spec.amounts {
        let (Amount::Exactly(quantity) | Amount::More(quantity) | Amount::Less(quantity)) = amount;
        for size in [PageSize::HUGE_2M, PageSize::HUGE_1G] {
            let _ = quantity.pages(size);
        }
    }
}

/// Reads a trace for the simulator: it is written, and read again the same.
pub fn trace(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    let Ok(read) = trace::read(&text) else { return };
    let written = trace::write(&read);
    assert_eq!(trace::read(&written).as_ref(), Ok(&read), "what is written is read:\n{written}");
    for program in &read.processes {
        assert!(program.regions() <= trace::MOST_REGIONS);
        assert!(program.seconds() >= 0.0, "{}", program.seconds());
    }
}

/// Reads a recording for `megapage plan`: it is written, and read again the same; hosts merge in
/// any order.
pub fn recording(data: &[u8]) {
    let text = String::from_utf8_lossy(data);
    match recording::read(&text) {
        Ok((read, notes)) => {
            assert!(notes.iter().all(|note| !note.contains('\n')), "one line each: {notes:?}");
            check_recordings(read);
        }
        Err(error) => assert!(!error.to_string().contains('\n'), "one line: {error}"),
    }
}

fn check_recordings(read: Vec<Recording>) {
    let written: String = read.iter().map(Recording::text).collect();
    let again = recording::read(&written).expect("what is read can be written");
    assert_eq!(
        (again.0.as_slice(), again.1.len()),
        (read.as_slice(), 0),
        "what is written is read:\n{written}"
    );
    let mut backwards = read.clone();
    backwards.reverse();
    let fleet = Fleet::merge(read);
    assert_eq!(Fleet::merge(backwards), fleet, "merged in any order");
    for host in fleet.hosts.values() {
        assert!(host.seconds() > 0.0 && host.moments.iter().all(|(at, _)| at.is_finite()));
    }
}

/// Reads a unit file of systemd: each readable command is still one with the launcher before it,
/// with the same prefixes and arguments.
pub fn unit(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for assignment in parse(text) {
        assert!(!assignment.key.contains('='), "{assignment:?}");
        for command in commands(&assignment.value).unwrap_or_default() {
            let line = rewritten(&command, "/l run");
            let again = commands(&line).expect("what is read can be written");
            assert_eq!(again.len(), 1, "{line}");
            assert_eq!((again[0].program.as_str(), &again[0].prefixes), ("/l", &command.prefixes), "{line}");
            let program = if command.written == ";" { "\\;" } else { &command.written };
            assert!(again[0].rest.ends_with(&format!("-- {program}{}", command.rest)), "{line}");
        }
    }
}
