//! Values in few columns.

use megapage_units::Bytes;

/// Formats a size in at most five columns: `0`, `17K`, `512M`, `2.31G`, `10.5T`. Never rounds to
/// zero.
pub fn size(bytes: Bytes) -> String {
    const UNITS: [char; 7] = ['B', 'K', 'M', 'G', 'T', 'P', 'E'];
    if bytes == Bytes::ZERO {
        return "0".into();
    }
    let mut scaled = bytes.0 as f64;
    let mut unit = 0;
    // From 999.5 on, three digits would round to 1000.
    while scaled >= 999.5 && unit + 1 < UNITS.len() {
        scaled /= 1024.0;
        unit += 1;
    }
    let places = match scaled {
        scaled if scaled >= 99.95 || scaled.fract() == 0.0 => 0,
        scaled if scaled >= 9.995 => 1,
        _ => 2,
    };
    format!("{scaled:.places$}{}", UNITS[unit])
}

/// Formats a change of a size with its sign: `+24M`, `-2M`, `0`.
pub fn change(bytes: i64) -> String {
    let sign = match bytes {
        0 => "",
        1.. => "+",
        _ => "-",
    };
    format!("{sign}{}", size(Bytes(bytes.unsigned_abs())))
}

/// Formats a share as per cent in at most four columns: `0`, `<0.1`, `7.3`, `41.2`, `100`.
pub fn percent(share: f64) -> String {
    match share * 100.0 {
        0.0 => "0".into(),
        value if value < 0.05 => "<0.1".into(),
        value if value >= 99.95 => format!("{value:.0}"),
        value => format!("{value:.1}"),
    }
}

/// Formats a rate or a count in at most five columns: `0`, `0.3`, `12`, `4711`, `12.3k`.
pub fn count(value: f64) -> String {
    match value {
        0.0 => "0".into(),
        value if value < 9.95 && value.fract() != 0.0 => format!("{value:.1}"),
        value if value < 9999.5 => format!("{value:.0}"),
        value if value < 999_500.0 => format!("{:.1}k", value / 1e3),
        value => format!("{:.1}M", value / 1e6),
    }
}

/// Formats a length of time in at most five columns: `0.5s`, `12s`, `3m`, `2h`.
pub fn time(seconds: f64) -> String {
    match seconds {
        seconds if seconds < 9.95 => format!("{seconds:.1}s"),
        seconds if seconds < 99.5 => format!("{seconds:.0}s"),
        seconds if seconds < 5970.0 => format!("{:.0}m", seconds / 60.0),
        seconds => format!("{:.0}h", seconds / 3600.0),
    }
}

/// Returns `text` in at most `width` characters; `…` marks that its end was cut off.
pub fn fit(text: &str, width: usize) -> String {
    if text.chars().count() <= width {
        return text.into();
    }
    text.chars().take(width.saturating_sub(1)).chain(['…']).take(width).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_fit_five_columns() {
        for (bytes, text) in [
            (0, "0"),
            (17, "17B"),
            (4096, "4K"),
            (2 << 20, "2M"),
            (5 << 19, "2.50M"),
            ((2.31 * (1u64 << 30) as f64) as u64, "2.31G"),
            ((1 << 30) - 1, "1.00G"),
            (1023 << 20, "1.00G"),
            (999 << 20, "999M"),
            ((10.46 * (1u64 << 40) as f64) as u64, "10.5T"),
            (u64::MAX, "16E"),
        ] {
            assert_eq!(size(Bytes(bytes)), text);
        }
        for shift in 0..63 {
            for near in [-1, 0, 1, 7] {
                let bytes = (1u64 << shift).saturating_add_signed(near);
                assert!(size(Bytes(bytes)).len() <= 5, "{}", size(Bytes(bytes)));
            }
        }
        assert_eq!(
            (change(-(2 << 20)), change(24 << 20), change(0)),
            ("-2M".into(), "+24M".into(), "0".into())
        );
    }

    #[test]
    fn small_shares_are_not_none() {
        let shares = [0.0, 0.0001, 0.073, 0.412, 0.9996, 1.0].map(percent);
        assert_eq!(shares, ["0", "<0.1", "7.3", "41.2", "100", "100"]);
        assert_eq!([0.0, 0.3, 12.0, 4711.2, 12_345.0].map(count), ["0", "0.3", "12", "4711", "12.3k"]);
        assert_eq!([0.471, 12.3, 185.0, 7200.0].map(time), ["0.5s", "12s", "3m", "2h"]);
    }

    #[test]
    fn a_cut_is_shown() {
        assert_eq!(fit("redis", 5), "redis");
        assert_eq!(fit("redis-server", 6), "redis…");
        assert_eq!(fit("redis", 0), "");
    }
}
