//! Tests with clients of all kinds, each against a server that goes on only when the test lets it.

use super::*;
use crate::observability::{Listen, MetricsConfig};
use crate::telemetry::tests::{pass, promoted, telemetry};
use megapage_kernel::KernelRoot;
use megapage_kernel::socket::connect_to;
use std::net::SocketAddr;
use std::net::TcpStream;

/// Deadlines that a test can wait for.
const SHORT: Deadlines = Deadlines {
    read: Duration::from_millis(80),
    write: Duration::from_millis(80),
    close: Duration::from_millis(80),
    idle: Duration::from_millis(20),
};
/// Time that no expected event takes, on any machine.
const LONG: Duration = Duration::from_secs(60);

struct Bench {
    serving: Serving,
    tell: UnixStream,
    config: MetricsConfig,
    address: Option<SocketAddr>,
    _directory: tempfile::TempDir,
}

impl Bench {
    fn new(deadlines: Deadlines) -> Bench {
        let directory = tempfile::tempdir().unwrap();
        let config = MetricsConfig {
            socket: directory.path().join("s"),
            listen: Listen(Some("127.0.0.1:0".parse().unwrap())),
            ..MetricsConfig::default()
        };
        let listeners = Listeners::open(&config, None).unwrap();
        let address = listeners.loopback.as_ref().map(|(_, listener)| listener.local_addr().unwrap());
        let shared = Arc::new(Shared::new(KernelRoot::live(), telemetry(5, 20_000)));
        let (tell, receiver) = UnixStream::pair().unwrap();
        receiver.set_nonblocking(true).unwrap();
        let serving = Serving::new(&shared, listeners, receiver, PathBuf::new(), deadlines);
        Bench { serving, tell, config, address, _directory: directory }
    }

    /// Makes one round that does not wait.
    fn round(&mut self) {
        self.tell.write_all(&[NOTED]).unwrap();
        assert!(self.serving.round());
        for origin in [Origin::Unix, Origin::Loopback] {
            let own = self.serving.connections.iter().filter(|one| one.origin() == origin);
            assert!(own.count() <= MOST_CONNECTIONS);
        }
    }

    fn rounds_until(&mut self, mut what: impl FnMut(&Serving) -> bool) {
        let start = Instant::now();
        while !what(&self.serving) {
            assert!(start.elapsed() < LONG, "it does not come to that");
            self.round();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    fn connect(&self) -> UnixStream {
        connect_to(&self.config.socket).unwrap()
    }

    /// Returns the whole answer to `request`, for an honest client.
    fn ask(&mut self, request: &[u8]) -> String {
        let mut client = self.connect();
        client.write_all(request).unwrap();
        self.hear(&mut client)
    }

    /// Returns everything that comes before the server hangs up.
    fn hear(&mut self, client: &mut impl Read) -> String {
        let (mut text, mut piece, start) = (Vec::new(), vec![0; 1 << 16], Instant::now());
        loop {
            assert!(start.elapsed() < LONG, "no end after {} bytes", text.len());
            self.round();
            match client.read(&mut piece) {
                Ok(0) => return String::from_utf8_lossy(&text).into_owned(),
                Ok(count) => text.extend_from_slice(&piece[..count]),
                Err(error) if error.kind() == ErrorKind::WouldBlock => {
                    std::thread::sleep(Duration::from_millis(1));
                }
                Err(error) => panic!("{error}"),
            }
        }
    }

    fn dropped(&self) -> u64 {
        self.serving.shared.dropped.load(Ordering::Relaxed)
    }
}

fn get(target: &str) -> Vec<u8> {
    format!("GET {target} HTTP/1.1\r\nHost: x\r\n\r\n").into_bytes()
}

fn body(answer: &str) -> &str {
    answer.split_once("\r\n\r\n").unwrap().1
}

#[test]
fn each_page_is_answered() {
    let mut bench = Bench::new(Deadlines::USUAL);
    let mut one = pass(3, &[(5, "redis")]);
    one.done = vec![promoted(5, 1), promoted(5, 2)];
    bench.serving.shared.telemetry().note(&one, Duration::from_secs(4));
    let metrics = bench.ask(&get("/metrics"));
    assert!(metrics.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/plain; version=0.0.4"), "{metrics}");
    assert!(metrics.contains("\nmegapage_promoted_bytes_total{policy=\"megapage\"} 4194304\n"), "{metrics}");
    let length = metrics.split_once("Content-Length: ").unwrap().1.split_once('\r').unwrap().0;
    assert_eq!(length.parse::<usize>().unwrap(), body(&metrics).len());
    let open =
        bench.ask(b"GET /metrics HTTP/1.0\r\nAccept: application/openmetrics-text; version=1.0.0\r\n\r\n");
    assert!(open.contains("Content-Type: application/openmetrics-text") && open.ends_with("# EOF\n"));
    let status: serde_json::Value = serde_json::from_str(body(&bench.ask(&get("/status")))).unwrap();
    assert_eq!((&status["schema"], &status["passes"]), (&"megapage.status/2".into(), &1.into()));
    let decisions = bench.ask(&get("/decisions?since=1"));
    let decisions: serde_json::Value = serde_json::from_str(body(&decisions)).unwrap();
    assert_eq!(decisions["schema"], "megapage.decisions/1");
    assert_eq!((&decisions["newest"], &decisions["decisions"][0]["number"]), (&2.into(), &2.into()));
    assert!(bench.ask(&get("/")).contains("GET /metrics"));
    let head = bench.ask(b"HEAD /status HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200") && body(&head).is_empty(), "{head}");
}

#[test]
fn what_is_not_asked_rightly_is_refused() {
    let mut bench = Bench::new(Deadlines::USUAL);
    let long = format!("GET /{} HTTP/1.1\r\n\r\n", "x".repeat(20_000));
    let many = format!("GET / HTTP/1.1\r\n{}\r\n", "a: b\r\n".repeat(100));
    for (request, code) in [
        ("POST /metrics HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "405 Method Not Allowed\r\n"),
        ("GET /other HTTP/1.1\r\n\r\n", "404"),
        ("GET /decisions?since=x HTTP/1.1\r\n\r\n", "400"),
        ("GET / HTTP/3.0\r\n\r\n", "505"),
        ("GET / HTTP/1.1\r\n: nothing\r\n\r\n", "400"),
        ("rubbish\r\n\r\n", "400"),
        (&long, "431"),
        (&many, "431"),
    ] {
        let answer = bench.ask(request.as_bytes());
        assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{code}: {answer}");
    }
    let responses = bench.serving.shared.responses();
    assert_eq!(responses, [(400, 3), (404, 1), (405, 1), (431, 2), (505, 1)]);
    assert_eq!(bench.dropped(), 0);
}

#[test]
fn binary_garbage_is_refused_and_other_clients_are_served() {
    let mut bench = Bench::new(SHORT);
    let mut state = 0x2545_f491_4f6c_dd1d_u64;
    for _ in 0..40 {
        let garbage: Vec<u8> = (0..3000)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state as u8
            })
            .collect();
        let answer = bench.ask(&garbage);
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 4"), "{answer}");
        // Resets the rate, so that the next client may come in.
        bench.serving.paces[0] = Pace::new(MOST_A_SECOND[0], Instant::now());
    }
    bench.serving.deadlines = Deadlines::USUAL;
    assert!(bench.ask(&get("/status")).starts_with("HTTP/1.1 200"));
}

#[test]
fn a_request_that_trickles_in_is_cut_off() {
    let mut bench = Bench::new(SHORT);
    let mut slow = bench.connect();
    slow.write_all(b"GET /status HT").unwrap();
    let answer = bench.hear(&mut slow);
    assert!(answer.starts_with("HTTP/1.1 408"), "{answer}");
    // Each byte comes separately, without end: the number of pieces is bounded, too.
    let mut bench = Bench::new(Deadlines { read: LONG, ..SHORT });
    let mut slow = bench.connect();
    let mut sent = 0;
    bench.rounds_until(|serving| {
        sent += 1;
        let _ = slow.write(b"a");
        assert!(sent < 1000);
        serving.shared.responses() == [(431, 1)]
    });
}

#[test]
fn silent_clients_do_not_block_others() {
    let mut bench = Bench::new(SHORT);
    let mut idle = Vec::new();
    for _ in 0..200 {
        // If the queue is full, the flood is held up as well.
        if let Ok(client) = connect_to(&bench.config.socket) {
            idle.push(client);
        }
        bench.round();
    }
    assert!(idle.len() > MOST_CONNECTIONS);
    let start = Instant::now();
    let answer = loop {
        assert!(start.elapsed() < LONG);
        match connect_to(&bench.config.socket) {
            Ok(mut client) => {
                client.write_all(&get("/status")).unwrap();
                break bench.hear(&mut client);
            }
            Err(_) => bench.round(),
        }
        std::thread::sleep(Duration::from_millis(1));
    };
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    bench.rounds_until(|serving| serving.connections.is_empty());
    assert!(bench.dropped() > 0);
}

#[test]
fn the_rate_of_connections_is_bounded() {
    // The second does not end in this test.
    let mut bench = Bench::new(Deadlines::USUAL);
    bench.serving.paces[0] = Pace::new(2, Instant::now() + LONG);
    let _waiting = [bench.connect(), bench.connect(), bench.connect()];
    bench.round();
    bench.round();
    assert_eq!(bench.serving.connections.len(), 2);
}

#[test]
fn a_client_that_hangs_up_half_way() {
    let mut bench = Bench::new(Deadlines { read: LONG, ..Deadlines::USUAL });
    let half = bench.connect();
    half.shutdown(std::net::Shutdown::Write).unwrap();
    bench.round();
    bench.rounds_until(|serving| serving.connections.is_empty());
    assert_eq!(bench.dropped(), 1);
    // A client that only ends its side of the stream is answered.
    let mut client = bench.connect();
    client.write_all(&get("/status")).unwrap();
    client.shutdown(std::net::Shutdown::Write).unwrap();
    assert!(bench.hear(&mut client).starts_with("HTTP/1.1 200"));
    // This client is gone before it is answered.
    let mut gone = bench.connect();
    gone.write_all(&get("/status")).unwrap();
    drop(gone);
    bench.round();
    bench.rounds_until(|serving| serving.connections.is_empty());
}

#[test]
fn a_client_that_never_reads_is_dropped_and_others_are_answered_meanwhile() {
    let mut bench = Bench::new(SHORT);
    let mut one = pass(1, &[(5, "redis")]);
    one.done = (0..10_000).map(|region| promoted(5, region)).collect();
    bench.serving.shared.telemetry().note(&one, Duration::from_secs(4));
    let mut deaf = bench.connect();
    deaf.write_all(&get("/decisions")).unwrap();
    bench.round();
    // Only that client is short of time.
    bench.serving.deadlines = Deadlines { write: LONG, ..Deadlines::USUAL };
    assert_eq!(bench.serving.connections.len(), 1, "the answer is larger than what a socket holds");
    assert!(bench.ask(&get("/status")).starts_with("HTTP/1.1 200"));
    bench.rounds_until(|serving| serving.shared.dropped.load(Ordering::Relaxed) == 1);
}

#[test]
fn the_loopback_address_answers_who_asks_for_it_by_name() {
    let mut bench = Bench::new(Deadlines::USUAL);
    let address = bench.address.unwrap();
    for (host, code) in [(address.to_string(), "200"), ("attacker.example".into(), "403")] {
        let mut client = TcpStream::connect(address).unwrap();
        client.set_nonblocking(true).unwrap();
        client.write_all(format!("GET /status HTTP/1.1\r\nHost: {host}\r\n\r\n").as_bytes()).unwrap();
        let answer = bench.hear(&mut client);
        assert!(answer.starts_with(&format!("HTTP/1.1 {code}")), "{host}: {answer}");
    }
}

#[test]
fn where_memory_lies_is_reported_on_the_socket_alone() {
    let mut bench = Bench::new(Deadlines::USUAL);
    let mut one = pass(1, &[(5, "redis")]);
    one.done = vec![promoted(5, 3)];
    bench.serving.shared.telemetry().note(&one, Duration::from_secs(4));
    let region = |answer: &str| {
        let answer: serde_json::Value = serde_json::from_str(body(answer)).unwrap();
        answer["decisions"][0]["region"].clone()
    };
    // The client is the user of the "daemon".
    assert_eq!(region(&bench.ask(&get("/decisions"))), "600000");
    let mut client = TcpStream::connect(bench.address.unwrap()).unwrap();
    client.set_nonblocking(true).unwrap();
    client.write_all(b"GET /decisions HTTP/1.1\r\n\r\n").unwrap();
    assert!(region(&bench.hear(&mut client)).is_null());
}

#[test]
fn a_full_loopback_address_leaves_the_socket_alone() {
    let mut bench = Bench::new(Deadlines { idle: LONG, read: LONG, ..Deadlines::USUAL });
    let idle: Vec<TcpStream> = (0..20).map(|_| TcpStream::connect(bench.address.unwrap()).unwrap()).collect();
    bench.rounds_until(|serving| serving.connections.len() == MOST_CONNECTIONS);
    assert!(bench.ask(&get("/status")).starts_with("HTTP/1.1 200"));
    let loopback = bench.serving.connections.iter().filter(|one| one.origin() == Origin::Loopback);
    assert_eq!((idle.len(), loopback.count()), (20, MOST_CONNECTIONS));
}
