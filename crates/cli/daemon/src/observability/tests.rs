use super::*;

fn refused(text: &str) -> String {
    toml::from_str::<MetricsConfig>(text).unwrap_err().to_string()
}

#[test]
fn what_is_not_given_is_as_by_default_and_all_can_be_given() {
    assert_eq!(toml::from_str::<MetricsConfig>("").unwrap(), MetricsConfig::default());
    let text = "socket = '/run/m/s'\nsocket_mode = '0660'\nsocket_group = 'adm'\nlisten = '[::1]:9781'\n\
                    textfile = '/var/lib/x.prom'\nprocesses = 0\n";
    let config: MetricsConfig = toml::from_str(text).unwrap();
    assert_eq!((config.socket_mode, config.processes), (Mode(0o660), 0));
    assert_eq!(toml::from_str::<MetricsConfig>(&toml::to_string(&config).unwrap()).unwrap(), config);
    let log: LogConfig = toml::from_str("level = 'debug'\nformat = 'json'\n").unwrap();
    assert_eq!(log, LogConfig { level: LogLevel::Debug, format: LogFormat::Json });
    assert_eq!(toml::from_str::<LogConfig>("").unwrap(), LogConfig::default());
}

#[test]
fn only_loopback_addresses_are_listened_on() {
    for good in ["127.0.0.1:1", "127.1.2.3:9781", "[::1]:0", "[::ffff:127.0.0.1]:80"] {
        assert!(good.parse::<Listen>().unwrap().0.is_some(), "{good}");
    }
    for bad in ["0.0.0.0:9781", "10.0.0.1:9781", "[::]:9781", "[fe80::1]:1", "[::ffff:10.0.0.1]:80"] {
        let what = refused(&format!("listen = '{bad}'"));
        assert!(what.contains("is not a loopback address: give one such as 127.0.0.1:9781"), "{what}");
    }
    assert!(refused("listen = 'localhost'").contains("is no address and port"));
}

#[test]
fn what_makes_no_sense_is_refused_with_the_way_out() {
    for (text, what) in [
        ("socket_mode = '9'", "'9' is no mode of a file: give octal digits"),
        ("socket_mode = '+7'", "is no mode of a file"),
        ("socket_mode = '1777'", "is no mode of a file"),
        ("textfile = 'x.prom'", "give an absolute path that ends in .prom"),
        ("textfile = '/var/x.txt'", "give an absolute path that ends in .prom"),
        ("processes = 1001", "1001 is out of range: give 0 to 1000"),
        ("processes = -1", "-1 is out of range"),
        ("sockets = '/x'", "unknown field `sockets`"),
    ] {
        assert!(refused(text).contains(what), "{text}: {}", refused(text));
    }
    assert!(toml::from_str::<LogConfig>("level = 'loud'").unwrap_err().to_string().contains("`warn`"));
}
