use super::*;

#[test]
fn only_what_names_this_machine_is_a_loopback_host() {
    for good in ["localhost", "LOCALHOST:9781", "127.0.0.1", "127.0.0.1:9781", "[::1]", "[::1]:9781"] {
        assert!(is_loopback(good), "{good}");
    }
    for bad in ["", "example.org", "localhost.example.org:80", "10.0.0.1", "[fe80::1]:80", "127.0.0.1.x"] {
        assert!(!is_loopback(bad), "{bad}");
    }
}

#[test]
fn a_query_is_numbers() {
    assert_eq!(numbers(""), Ok((0, u64::MAX)));
    assert_eq!(numbers("since=7&last=3&"), Ok((7, 3)));
    for bad in ["since=", "since=-1", "last=x", "from=3", "since"] {
        assert!(numbers(bad).is_err(), "{bad}");
    }
}
