use super::*;
use std::io::{Read, Write};
use std::net::TcpListener;

#[test]
fn the_one_sample_of_prometheus_is_read() {
    let answer = |kind: &str, result: &str| {
        format!(r#"{{"status":"success","data":{{"resultType":"{kind}","result":{result}}}}}"#)
    };
    let one = r#"{"metric":{},"value":[1435781451.781,"12.5"]}"#;
    assert_eq!(sample(&answer("vector", &format!("[{one}]"))), Ok(12.5));
    assert_eq!(sample(&answer("scalar", r#"[1,"3"]"#)), Ok(3.0));
    assert!(sample(&answer("vector", "[]")).unwrap_err().contains("no result"));
    assert!(sample(&answer("vector", &format!("[{one},{one}]"))).unwrap_err().contains("2 results"));
    assert!(sample(&answer("matrix", "[]")).unwrap_err().contains("neither"));
    assert_eq!(sample(r#"{"status":"error","error":"parse error"}"#), Err("parse error".into()));
    assert!(sample("<html>").is_err());
}

#[test]
fn series_are_summed_by_name_and_labels() {
    let page = "# HELP x_total Requests.\n# TYPE x_total counter\nx_total{code=\"200\",path=\"/a}\"} 10 1395066363000\n\
                x_total{code=\"500\",path=\"a \\\"b\\\"\"} 2\nx_total_more 99\ny 1e3\n";
    let sum = |name: &str| Selector::parse(name).unwrap().sum(page);
    assert_eq!(sum("x_total"), Ok(12.0));
    assert_eq!(sum("x_total{code=\"500\"}"), Ok(2.0));
    assert_eq!(sum("x_total{path=\"a \\\"b\\\"\"}"), Ok(2.0));
    assert_eq!(sum("y"), Ok(1000.0));
    assert!(sum("z").unwrap_err().contains("no series z"));
    assert!(sum("x_total{code=\"404\"}").is_err());
    for bad in ["", "a b", "a{", "a{b}", "a{b=\"c}"] {
        assert_eq!(Selector::parse(bad), None, "{bad}");
    }
}

/// Starts a server that gives the next answer to each request. Its thread returns the request
/// lines.
fn serve(answers: Vec<String>) -> (String, std::thread::JoinHandle<Vec<String>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let server = std::thread::spawn(move || {
        let mut asked = Vec::new();
        for answer in answers {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = Vec::new();
            let mut bytes = [0; 1024];
            while !request.ends_with(b"\r\n\r\n") {
                let count = stream.read(&mut bytes).unwrap();
                request.extend_from_slice(&bytes[..count]);
            }
            asked.push(String::from_utf8_lossy(&request).lines().next().unwrap_or_default().to_string());
            let head =
                format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n", answer.len());
            stream.write_all((head + &answer).as_bytes()).unwrap();
        }
        asked
    });
    (url, server)
}

#[test]
fn a_server_is_asked_and_one_that_is_silent_is_not_waited_for() {
    let one = r#"{"status":"success","data":{"resultType":"scalar","result":[1,"7"]}}"#;
    let (url, server) = serve(vec![one.into(), "x_total 4\n".into()]);
    let patience = Duration::from_secs(10);
    assert_eq!(Source::query(&url, "sum(rate(a[1m])) + 1", patience).read(), Ok(7.0));
    assert_eq!(Source::scrape(&format!("{url}/metrics"), "x_total", patience).unwrap().read(), Ok(4.0));
    let asked = server.join().unwrap();
    assert!(asked[0].starts_with("GET /api/v1/query?query=sum"), "{asked:?}");
    assert!(!asked[0].contains("1m])) +"), "what means something in a URL is escaped: {asked:?}");
    assert!(asked[1].starts_with("GET /metrics "), "{asked:?}");
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", silent.local_addr().unwrap());
    let error = Source::query(&url, "x", Duration::from_millis(50)).read().unwrap_err();
    assert!(error.contains("timeout"), "{error}");
}
