//! `megapage reclaim`: zeros in huge pages are freed, and the contents of memory stay.

use crate::run_support;
use crate::user;

use megapage_testing::{is_root, skip};
use run_support::run;
use serde_json::Value;
use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;
use user::{megapage, refused};

#[test]
fn bad_input_is_named_in_one_line() {
    refused(&["reclaim", "0"], "'0' is not the number of a process");
    refused(&["reclaim", "a b"], "'a b' is not the name of a unit");
    refused(&["reclaim", "1", "--least", "3k"], "give a multiple of 4k, from 4k to 2m");
    refused(&["reclaim", "1", "--least", "4m"], "give a multiple of 4k, from 4k to 2m");
    refused(&["reclaim"], "required");
    refused(&["reclaim", "2147483647"], "");
}

#[test]
fn zeros_are_freed_and_contents_stay() {
    if !is_root() {
        return skip("needs CAP_SYS_NICE to split another process's huge pages");
    }
    // 64 MiB of zeros in a heap on huge pages, except one word.
    let script = "$| = 1; my $text = \"\\0\" x (64 << 20); substr($text, 40 << 20, 4) = 'word'; print \"ready\\n\"; <STDIN>; \
                  my $zeros = ($text =~ tr/\\0//); print substr($text, 40 << 20, 4), ' ', $zeros == (64 << 20) - 4 ? 'same' : $zeros, \"\\n\";";
    let mut command = run(&["--heap", "thp", "--", "perl", "-e", script]);
    // Without a report, the launcher's process becomes the program.
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    assert_eq!(lines.next().unwrap().unwrap(), "ready");
    let pid = child.id().to_string();
    let look = megapage(&["reclaim", &pid, "--dry-run", "--json"]);
    if look.status == 2 && look.err.contains("this kernel lacks") {
        child.kill().unwrap();
        child.wait().unwrap();
        return skip("the kernel frees no zeros when it splits a huge page (Linux 6.12)");
    }
    assert_eq!(look.status, 0, "{}", look.err);
    let found: Value = serde_json::from_str(&look.out).unwrap();
    assert_eq!(find(&found, "outcome"), Some(&Value::Null), "{}", look.out);
    let mib = |value: &Value| value.as_u64().unwrap_or_default() >> 20;
    let done = megapage(&["reclaim", &pid, "--json"]);
    assert_eq!(done.status, 0, "{}{}", done.out, done.err);
    let freed: Value = serde_json::from_str(&done.out).unwrap();
    let one = find(&freed, "outcome").expect("what came of it");
    assert!(mib(&one["freed_bytes"]) >= 32, "{}", done.out);
    let again = megapage(&["reclaim", &pid]);
    assert_eq!(again.status, 0, "{}", again.err);
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    assert_eq!(lines.next().unwrap().unwrap(), "word same", "every byte is as it was");
    child.wait().unwrap();
}

/// Returns the first value of this name, at any depth.
fn find<'a>(value: &'a Value, name: &str) -> Option<&'a Value> {
    match value {
        Value::Object(fields) => fields.get(name).or_else(|| fields.values().find_map(|it| find(it, name))),
        Value::Array(items) => items.iter().find_map(|it| find(it, name)),
        _ => None,
    }
}
