//! Times and sizes as text in a configuration file: `"250ms"`, `"64m"`.

use std::time::Duration;

/// Parses a time: a value with `us`, `ms`, `s`, `m` (minutes) or `h`.
pub fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("'{text}' is not a time; write it like 250ms, 1s, 5m or 1h");
    let value = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match &text[value.len()..] {
        "us" => 1e-6,
        "ms" => 1e-3,
        "s" => 1.0,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(wrong()),
    };
    let value: f64 = value.trim().parse().map_err(|_| wrong())?;
    Duration::try_from_secs_f64(value * unit).map_err(|_| wrong())
}

/// Returns the shortest text that [`duration`] reads as the same time.
pub fn of_duration(time: Duration) -> String {
    let nanos = time.as_nanos();
    for (unit, length) in [("h", 3_600_000_000_000), ("m", 60_000_000_000), ("s", 1_000_000_000)] {
        if nanos > 0 && nanos.is_multiple_of(length) {
            return format!("{}{unit}", nanos / length);
        }
    }
    match nanos.is_multiple_of(1_000_000) {
        true => format!("{}ms", nanos / 1_000_000),
        false => format!("{}us", nanos as f64 / 1e3),
    }
}

/// A time as a string.
pub mod time {
    use serde::{Deserialize, Deserializer, Serializer};
    use std::time::Duration;

    /// Writes it as [`super::of_duration`] does.
    pub fn serialize<S: Serializer>(time: &Duration, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&super::of_duration(*time))
    }

    /// Reads it as [`super::duration`] does.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Duration, D::Error> {
        super::duration(&String::deserialize(from)?).map_err(serde::de::Error::custom)
    }
}

/// A size as a string.
pub mod size {
    use megapage_units::Bytes;
    use serde::{Deserialize, Deserializer, Serializer};

    /// Writes it in the largest unit that divides it.
    pub fn serialize<S: Serializer>(size: &Bytes, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(&text(*size))
    }

    /// Reads it as [`Bytes`] are read everywhere.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Bytes, D::Error> {
        String::deserialize(from)?.parse().map_err(serde::de::Error::custom)
    }

    pub(super) fn text(size: Bytes) -> String {
        for (unit, length) in [("g", 1 << 30), ("m", 1 << 20), ("k", 1 << 10)] {
            if size.0 > 0 && size.0.is_multiple_of(length) {
                return format!("{}{unit}", size.0 / length);
            }
        }
        size.0.to_string()
    }
}

/// A size as a string, or none.
pub mod some_size {
    use megapage_units::Bytes;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    /// Writes it as [`super::size`] does, or nothing.
    pub fn serialize<S: Serializer>(size: &Option<Bytes>, to: S) -> Result<S::Ok, S::Error> {
        size.map(super::size::text).serialize(to)
    }

    /// Reads it as [`super::size`] does.
    pub fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Bytes>, D::Error> {
        let text = Option::<String>::deserialize(from)?;
        text.map(|text| text.parse().map_err(serde::de::Error::custom)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use megapage_units::Bytes;

    #[test]
    fn times_are_read_and_written_alike() {
        for (text, millis) in
            [("250ms", 250), ("1s", 1000), ("5m", 300_000), ("1h", 3_600_000), ("0ms", 0), ("1500ms", 1500)]
        {
            assert_eq!(duration(text), Ok(Duration::from_millis(millis)), "{text}");
            assert_eq!(of_duration(Duration::from_millis(millis)), text);
        }
        assert_eq!(duration("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(of_duration(Duration::from_micros(15)), "15us");
        for wrong in ["", "5", "s", "-1s", "1d", "1e400s", "nans", "1 s s"] {
            assert!(duration(wrong).unwrap_err().contains("write it like"), "{wrong}");
        }
    }

    #[test]
    fn sizes_are_written_in_whole_units() {
        for (bytes, text) in [(64 << 20, "64m"), (3 << 30, "3g"), (4096, "4k"), (5, "5"), (0, "0")] {
            assert_eq!(size::text(Bytes(bytes)), text);
            assert_eq!(text.parse(), Ok(Bytes(bytes)));
        }
    }
}
