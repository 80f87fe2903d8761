//! Input from others: the broker's messages, HTTP, and words in shared memory.

use megapage_broker::Status;
use megapage_broker::leases::{Leases, Rules};
use megapage_daemon::fuzzing::{converse, http as answer};
use megapage_kernel::descriptors::MOST_DESCRIPTORS;
use megapage_kernel::{SHARED_WORDS, SharedWords};
use megapage_launch::report::HeapAccount;
use megapage_memory::stock::ask;
use megapage_memory::stock::wire::{ANSWER, Answer, REQUEST, Request};
use megapage_memory::{Backing, FallBack, Ledger, MOST_RANGES};
use megapage_remap::ledger::TextLedger;
use megapage_report::{json, top};
use megapage_snapshot::daemon::{DaemonStatus, Decisions};
use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::Relaxed;

/// Reads messages between a broker and its clients. Checks that each is written again with the same
/// bytes, and that a client reads the contents of a broker's message, or an error.
pub fn broker(data: &[u8]) {
    if let Some(bytes) = data.first_chunk::<REQUEST>()
        && let Some(request) = Request::decode(bytes)
    {
        assert_eq!(&request.encode(), bytes, "there is one way to write a request");
    }
    let decoded = data.first_chunk::<ANSWER>().and_then(|bytes| {
        let answer = Answer::decode(bytes)?;
        assert_eq!(&answer.encode(), bytes, "there is one way to write an answer");
        Some(answer)
    });
    let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
    // A message this short fits into any socket's buffer.
    theirs.write_all(&data[..data.len().min(4096)]).expect("room in the socket");
    theirs.shutdown(Shutdown::Write).expect("a socket");
    let taken = ask(&ours, Request::Status, &mut [const { None }; MOST_DESCRIPTORS]);
    assert_eq!(taken.ok(), decoded, "the client reads what is in the message");
}

/// Reads the broker's status, like a client.
pub fn broker_status(data: &[u8]) {
    let Ok(status) = serde_json::from_slice::<Status>(data) else { return };
    let text = serde_json::to_vec(&status).expect("plain values");
    assert!(serde_json::from_slice::<Status>(&text).is_ok(), "what is written is read");
}

/// Runs any sequence of requests for the broker's extents: none is handed out twice, and no process
/// has more than the rules allow.
///
/// The input: rules (extent pages, quota in extents, leases at most), then steps of three bytes.
pub fn broker_leases(data: &[u8]) {
    let Some((&[extent_pages, quota, most_leases], steps)) = data.split_first_chunk::<3>() else { return };
    let rules = Rules {
        page_bytes: 2 << 20,
        extent_pages: u64::from(extent_pages).max(1),
        stock: 16,
        quota: (quota > 0).then(|| u64::from(quota) * u64::from(extent_pages).max(1) * (2 << 20)),
        most_leases: usize::from(most_leases),
        most_at_once: 8,
    };
    let mut leases = Leases::new(rules);
    let (mut next, mut out) = (0u32, BTreeMap::<u32, (u32, u64)>::new());
    for &[what, process, amount] in steps.as_chunks::<3>().0.iter().take(512) {
        let (uid, process, amount) = (u32::from(process % 4), u64::from(process), u64::from(amount));
        match what % 5 {
            0 if leases.ready() < 64 => {
                leases.add(next);
                next += 1;
            }
            1 => {
                let pages = if amount == 255 { u64::MAX } else { amount };
                if let Ok(taken) = leases.take(uid, process, pages) {
                    assert!(!taken.is_empty() && taken.len() <= rules.most_at_once);
                    for extent in taken {
                        assert_eq!(out.insert(*extent, (uid, process)), None, "handed out twice");
                    }
                }
            }
            2 => returned(&mut out, leases.end(process), process),
            3 => returned(&mut out, leases.take_back(process, amount as usize), process),
            _ => {
                let kept: BTreeSet<u32> = leases.keep_ready(amount as usize).into_iter().collect();
                assert!(kept.iter().all(|extent| !out.contains_key(extent)), "not in stock");
            }
        }
        assert!(out.len() <= rules.most_leases, "more than all may have");
        assert_eq!(leases.has(process), out.values().any(|(_, holder)| *holder == process));
        for (uid, held) in leases.held(|_| 0) {
            assert_eq!(held.extents, out.values().filter(|(user, _)| *user == uid).count());
            assert!(rules.quota.is_none_or(|quota| held.extents as u64 * rules.extent_bytes() <= quota));
        }
    }
}

fn returned(out: &mut BTreeMap<u32, (u32, u64)>, extents: Vec<u32>, process: u64) {
    for extent in extents {
        let holder = out.remove(&extent).map(|(_, holder)| holder);
        assert_eq!(holder, Some(process), "of another process, or of none");
    }
}

/// Handles a request to the daemon: there is no answer until it is whole, and an answer is one
/// message of HTTP, of the stated length.
pub fn http(data: &[u8]) {
    // Bytes behind a whole request do not change the answer. The first part of a request has no
    // answer yet, or is refused.
    for (trusted, loopback) in [(true, false), (false, true)] {
        let Some((code, head, body)) = answer(data, trusted, loopback) else { continue };
        let head = std::str::from_utf8(&head).expect("text");
        assert!(head.starts_with(&format!("HTTP/1.1 {code} ")) && head.ends_with("\r\n\r\n"), "{head}");
        assert_eq!(head.matches("\r\n\r\n").count(), 1, "one head: {head}");
        assert!(head.lines().all(|line| !line.contains('\r')), "no line of the client's: {head}");
        let length = head.lines().find_map(|line| line.strip_prefix("Content-Length: "));
        let length: usize = length.and_then(|length| length.parse().ok()).expect("a length");
        assert!(body.len() == length || body.is_empty(), "HEAD has no body, all others all of it");
        assert!(length < 1 << 20, "bounded");
    }
}

/// Runs a client of the daemon's socket, whose request comes in pieces. It gets the same answer as
/// for the whole request, or the answer that there are too many pieces. Without a whole request it
/// gets nothing.
///
/// The input: the length of the pieces, then the request.
pub fn http_pieces(data: &[u8]) {
    let Some((&length, request)) = data.split_first() else { return };
    // The most bytes that a server lets a client send.
    let request = &request[..request.len().min(10_000)];
    let pieces: Vec<&[u8]> = request.chunks(usize::from(length).max(1) * 8).take(200).collect();
    let sent: Vec<u8> = pieces.concat();
    let got = converse(&pieces).expect("a socket");
    let whole = answer(&sent[..sent.len().min(8192)], true, false);
    let code = |code: u16| format!("HTTP/1.1 {code} ").into_bytes();
    match whole {
        _ if got.starts_with(&code(431)) => {}
        // A request that is refused early may begin in another way than the whole one.
        Some((400 | 431 | 505, ..)) => assert!(got.is_empty() || got.starts_with(b"HTTP/1.1 "), "no answer"),
        Some((wanted, ..)) => assert!(got.starts_with(&code(wanted)), "{}", String::from_utf8_lossy(&got)),
        None => assert!(got.is_empty(), "{}", String::from_utf8_lossy(&got)),
    }
}

/// Reads a daemon's answer to `megapage top`: it can be shown, without the control characters of
/// others.
pub fn daemon_answer(data: &[u8]) {
    if let Ok(status) = serde_json::from_slice::<DaemonStatus>(data) {
        assert!(!top::daemon::status(&status).contains('\n'));
        let text = serde_json::to_vec(&status).expect("plain values");
        assert!(serde_json::from_slice::<DaemonStatus>(&text).is_ok(), "what is written is read");
    }
    let Ok(decisions) = serde_json::from_slice::<Decisions>(data) else { return };
    let lines = top::daemon::decisions(&decisions, 5, 100);
    assert!(lines.len() <= 5);
    for line in lines {
        assert!(line.chars().count() <= 100 && !line.chars().any(char::is_control), "{line:?}");
    }
}

fn words(data: &[u8]) -> impl Iterator<Item = u64> {
    data.chunks(8).map(|chunk| {
        let mut bytes = [0; 8];
        bytes[..chunk.len()].copy_from_slice(chunk);
        u64::from_le_bytes(bytes)
    })
}

/// Returns shared memory with these words in it, written behind a launcher's back.
fn overwritten(data: &[u8]) -> SharedWords {
    thread_local! {
        // Views live until the process ends: one for all inputs.
        static WORDS: &'static [AtomicU64] =
            Box::leak((0..2 * SHARED_WORDS).map(|_| AtomicU64::new(0)).collect::<Vec<_>>().into_boxed_slice());
    }
    let shared = WORDS.with(|words| *words);
    for (word, value) in shared.iter().zip(words(data).chain(std::iter::repeat(0))) {
        word.store(value, Relaxed);
    }
    SharedWords::own(shared)
}

/// Reads the heap's ledger, as a hostile program writes it.
pub fn ledger(data: &[u8]) {
    let ledger = Ledger::launcher(overwritten(data));
    if let Some((start, end)) = ledger.span() {
        assert!(start < end);
    }
    assert!(ledger.ranges().all(|(start, end)| start < end) && ledger.ranges().count() <= MOST_RANGES);
    let held: Vec<u64> = Backing::ALL.iter().map(|backing| ledger.held(*backing)).collect();
    let sum = held.iter().chain([&ledger.total_held()]).try_fold(0u64, |sum, bytes| sum.checked_add(*bytes));
    assert!(!ledger.is_plausible() || sum.is_some(), "what is believed can be added up");
    let _ = (ledger.peak(), ledger.exit_handshake().is_exiting());
    if let Some(account) = HeapAccount::of(&ledger) {
        assert!(account.fall_backs.len() <= FallBack::ALL.len());
        assert!(json("megapage.run/1", &account).starts_with('{'));
    }
}

/// Reads the ledger of moved text, as a hostile program writes it: no more parts than there is room
/// for, each with a reason.
pub fn text_ledger(data: &[u8]) {
    let ledger = TextLedger::launcher(overwritten(data));
    let entries = ledger.entries();
    assert!(entries.len() <= ledger.room());
    entries.iter().for_each(|entry| assert!(entry.short().is_none_or(|why| !why.contains('\n'))));
    for objects in [0, 1, 64, 100_000] {
        let complete = ledger.is_complete(objects);
        assert!(!complete || (objects > 0 && entries.iter().all(|entry| entry.short().is_none())));
    }
    let _ = (ledger.took(), ledger.is_found(3), ledger.were_too_many());
    assert!(megapage_launch::text::ranges(&ledger).iter().all(|range| range.start() <= range.end()));
}
