use super::*;

#[test]
fn metrics_are_read_as_they_are_written() {
    for text in [
        "requests",
        "calls",
        "segments",
        "prometheus:http://127.0.0.1:9090 sum(rate(x_total[1m]))",
        "scrape:http://[::1]:9100/metrics x_total{code=\"200\"}",
        "command:echo 1 | tr 1 2",
        "psi:cpu",
        "psi:memory",
        "psi:io",
        "function:handle_request",
        "latency:/usr/lib/x/libserver.so.1 handle_request",
        "usdt:postgresql:query__done",
        "usdt:libpython3.11.so.1.0 python:gc__done",
    ] {
        let metric: Metric = text.parse().unwrap();
        assert_eq!(metric.to_string(), text);
    }
}

#[test]
fn what_is_no_metric_is_named() {
    for (text, what) in [
        ("speed", "'speed' is no metric"),
        ("psi:gpu", "is no metric"),
        ("prometheus:http://a:9090", "a query follows"),
        ("scrape:https://a x", "begins with http://"),
        ("command: ", "a shell command follows"),
        ("function:", "a name follows"),
        ("latency: ", "a name follows"),
        ("usdt:query__done", "PROVIDER:NAME follows"),
        ("usdt:postgresql:", "a name follows"),
        ("", "is no metric"),
    ] {
        let error = text.parse::<Metric>().unwrap_err().to_string();
        assert!(error.contains(what) && error.lines().count() == 1, "{error}");
    }
}
