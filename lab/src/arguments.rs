//! Readers of arguments, for clap's `value_parser`.

use megapage_units::Bytes;

/// Reads a factor for sizes and work: above 0, at most `most`.
pub fn scale(most: f64) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    move |text: &str| match text.parse() {
        Ok(scale) if scale > 0.0 && scale <= most => Ok(scale),
        _ => Err(format!("a scale is a number above 0, at most {most}")),
    }
}

/// Reads a share, 0 to 1.
pub fn share(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err("a share is a number from 0 to 1".into()),
    }
}

/// Reads a number from `least` to `most`; `what` describes such a number, for the error.
pub fn number(
    least: f64,
    most: f64,
    what: &'static str,
) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    move |text: &str| {
        let read = text.parse().ok().filter(|number| (least..=most).contains(number));
        read.ok_or_else(|| format!("give {what}"))
    }
}

/// Reads bytes, such as `4g`, from `least` to `most`.
pub fn size(
    least: Bytes,
    most: Bytes,
) -> impl Fn(&str) -> Result<Bytes, String> + Clone + Send + Sync + 'static {
    move |text: &str| match text.parse::<Bytes>() {
        Ok(size) if size < least || size > most => Err(format!("{least} to {most} are possible")),
        read => read.map_err(|error| error.to_string()),
    }
}

/// Reads the bytes of an index's postings: 1 MiB or more. The machine decides later if they fit.
pub fn index_size(text: &str) -> Result<Bytes, String> {
    match text.parse::<Bytes>() {
        Ok(size) if size < Bytes::mib(1) => Err("1 MiB is the least".into()),
        read => read.map_err(|error| error.to_string()),
    }
}

/// Sizes of an index to compare.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sizes {
    /// 1 MiB, and four times as much, and so on, and the largest that fits.
    All,
    /// These.
    These(Vec<Bytes>),
}

/// Reads sizes of an index, separated by commas, or `all`.
pub fn sizes(text: &str) -> Result<Sizes, String> {
    if text == "all" {
        return Ok(Sizes::All);
    }
    text.split(',').map(index_size).collect::<Result<_, _>>().map(Sizes::These)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bounds_are_possible_and_nothing_beyond_them_is() {
        assert_eq!((share("0"), share("1")), (Ok(0.0), Ok(1.0)));
        assert!(share("1.5").is_err() && share("-0.1").is_err() && share("NaN").is_err());
        assert_eq!((index_size("1m"), index_size("16g")), (Ok(Bytes::mib(1)), Ok(Bytes::gib(16))));
        assert_eq!(index_size("64t"), Ok(Bytes::gib(64 << 10)));
        assert_eq!(index_size("1023k").unwrap_err(), "1 MiB is the least");
        assert!(index_size("8x").unwrap_err().contains("unknown unit"));
        assert_eq!(sizes("all"), Ok(Sizes::All));
        assert_eq!(sizes("1m,1g"), Ok(Sizes::These(vec![Bytes::mib(1), Bytes::gib(1)])));
        assert_eq!(sizes("1m,1k").unwrap_err(), "1 MiB is the least");
        assert!(sizes("").is_err() && sizes("1m,").is_err());
    }

    #[test]
    fn a_scale_is_above_0_and_within_its_bound() {
        assert_eq!((scale(4.0)("4"), scale(1.0)("0.25")), (Ok(4.0), Ok(0.25)));
        for bad in ["0", "-1", "1.01", "NaN", "one", ""] {
            assert_eq!(scale(1.0)(bad), Err("a scale is a number above 0, at most 1".into()), "{bad}");
        }
    }
}
