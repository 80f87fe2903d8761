//! Byte counts: parsed from a user's text, and formatted for a user.

use std::fmt;
use std::iter::Sum;
use std::ops::{Add, AddAssign, Mul, Sub};
use std::str::FromStr;

/// A number of bytes. Sums, products and differences saturate at the largest value and at zero:
/// none wraps.
///
/// ```
/// use megapage_units::Bytes;
///
/// let size: Bytes = "1.5g".parse()?;
/// assert_eq!(size, Bytes::mib(1536));
/// assert_eq!((size + Bytes::mib(512)).to_string(), "2 GiB");
/// assert_eq!(Bytes::mib(1) - size, Bytes::ZERO);
/// # Ok::<(), megapage_units::ParseBytesError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bytes(pub u64);

impl Bytes {
    /// No bytes.
    pub const ZERO: Bytes = Bytes(0);

    /// Returns `n` times 1024 bytes, saturating.
    pub const fn kib(n: u64) -> Bytes {
        Bytes(n.saturating_mul(1 << 10))
    }

    /// Returns `n` times 1024² bytes, saturating.
    pub const fn mib(n: u64) -> Bytes {
        Bytes(n.saturating_mul(1 << 20))
    }

    /// Returns `n` times 1024³ bytes, saturating.
    pub const fn gib(n: u64) -> Bytes {
        Bytes(n.saturating_mul(1 << 30))
    }

    /// Returns the difference, or zero if `other` is larger.
    pub const fn saturating_sub(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_sub(other.0))
    }
}

/// Saturates: sums of values from other programs or files must neither panic nor wrap.
impl Add for Bytes {
    type Output = Bytes;
    fn add(self, other: Bytes) -> Bytes {
        Bytes(self.0.saturating_add(other.0))
    }
}

/// Saturates, as [`Add`].
impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Bytes) {
        *self = *self + other;
    }
}

impl Sub for Bytes {
    type Output = Bytes;
    fn sub(self, other: Bytes) -> Bytes {
        self.saturating_sub(other)
    }
}

/// Saturates, as [`Add`].
impl Mul<u64> for Bytes {
    type Output = Bytes;
    fn mul(self, n: u64) -> Bytes {
        Bytes(self.0.saturating_mul(n))
    }
}

impl Sum for Bytes {
    fn sum<I: Iterator<Item = Bytes>>(items: I) -> Bytes {
        items.fold(Bytes::ZERO, Add::add)
    }
}

/// Writes three significant digits in the largest binary unit that keeps the number at 1 or more:
/// `512 MiB`, `1.50 GiB`, `17 B`.
impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
        let mut scaled = self.0 as f64;
        let mut unit = 0;
        while scaled >= 1024.0 && unit + 1 < UNITS.len() {
            scaled /= 1024.0;
            unit += 1;
        }
        let text = if scaled.fract() == 0.0 || scaled >= 100.0 {
            format!("{scaled:.0} {}", UNITS[unit])
        } else if scaled >= 10.0 {
            format!("{scaled:.1} {}", UNITS[unit])
        } else {
            format!("{scaled:.2} {}", UNITS[unit])
        };
        f.pad(&text)
    }
}

/// Reason why a size could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParseBytesError {
    /// There is no value before the unit, or no value at all.
    NoNumber(String),
    /// The unit is none of B, K, M, G, T (these four also as in KB or KiB).
    UnknownUnit(String),
    /// The size is more than 2^64 - 1 bytes.
    TooLarge(String),
}

impl fmt::Display for ParseBytesError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoNumber(text) => write!(f, "'{text}' is not a size; write it like 512m, 2g or 4GiB"),
            Self::UnknownUnit(text) => {
                write!(f, "'{text}' has an unknown unit; use k, m, g or t (powers of 1024)")
            }
            Self::TooLarge(text) => write!(f, "'{text}' is more than 2^64 bytes"),
        }
    }
}

impl std::error::Error for ParseBytesError {}

/// Reads `4096`, `4k`, `2m`, `1.5g`, `512MiB`, `2MB`. All units are powers of 1024, as hugeadm's
/// are.
impl FromStr for Bytes {
    type Err = ParseBytesError;

    fn from_str(text: &str) -> Result<Bytes, ParseBytesError> {
        let trimmed = text.trim();
        let split = trimmed.find(|c: char| !(c.is_ascii_digit() || c == '.')).unwrap_or(trimmed.len());
        let (value, unit) = trimmed.split_at(split);
        let unit = unit.trim().to_ascii_lowercase();
        let shift = match unit.as_str() {
            "" | "b" => 0,
            "k" | "kb" | "kib" => 10,
            "m" | "mb" | "mib" => 20,
            "g" | "gb" | "gib" => 30,
            "t" | "tb" | "tib" => 40,
            _ => return Err(ParseBytesError::UnknownUnit(text.to_string())),
        };
        if value.is_empty() {
            return Err(ParseBytesError::NoNumber(text.to_string()));
        }
        let too_large = || ParseBytesError::TooLarge(text.to_string());
        match value.split_once('.') {
            None => {
                // Only digits are left, so parsing fails only by overflow.
                let whole: u64 = value.parse().map_err(|_| too_large())?;
                whole.checked_mul(1 << shift).map(Bytes).ok_or_else(too_large)
            }
            Some(_) => {
                let scaled = value.parse::<f64>().map_err(|_| ParseBytesError::NoNumber(text.to_string()))?
                    * (1u64 << shift) as f64;
                if scaled >= u64::MAX as f64 {
                    return Err(too_large());
                }
                Ok(Bytes(scaled as u64))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_every_spelling() {
        for (text, bytes) in [
            ("0", 0),
            ("4096", 4096),
            ("4k", 4096),
            ("4K", 4096),
            ("2m", 2 << 20),
            ("2MB", 2 << 20),
            ("512MiB", 512 << 20),
            ("1g", 1 << 30),
            ("1.5g", 3 << 29),
            ("1 GiB", 1 << 30),
            ("17B", 17),
        ] {
            assert_eq!(text.parse(), Ok(Bytes(bytes)), "{text}");
        }
    }

    #[test]
    fn refuses_what_is_no_size() {
        assert!(matches!("".parse::<Bytes>(), Err(ParseBytesError::NoNumber(_))));
        assert!(matches!("m".parse::<Bytes>(), Err(ParseBytesError::NoNumber(_))));
        assert!(matches!("1.2.3m".parse::<Bytes>(), Err(ParseBytesError::NoNumber(_))));
        assert!(matches!("-1m".parse::<Bytes>(), Err(ParseBytesError::UnknownUnit(_))));
        assert!(matches!("4x".parse::<Bytes>(), Err(ParseBytesError::UnknownUnit(_))));
        assert!(matches!("4i".parse::<Bytes>(), Err(ParseBytesError::UnknownUnit(_))));
        for unit in ["kbbb", "mii", "ki", "kbi", "bb", "ib", "bib", "kk", "mibb", "e"] {
            let parsed = format!("4{unit}").parse::<Bytes>();
            assert!(matches!(parsed, Err(ParseBytesError::UnknownUnit(_))), "{unit}: {parsed:?}");
        }
        assert!(matches!("99999999999g".parse::<Bytes>(), Err(ParseBytesError::TooLarge(_))));
        assert!(matches!("99999999999999999999".parse::<Bytes>(), Err(ParseBytesError::TooLarge(_))));
    }

    #[test]
    fn sums_and_products_saturate() {
        let most = Bytes(u64::MAX);
        assert_eq!(most + Bytes(1), most);
        assert_eq!(Bytes(1 << 40) * (1 << 40), most);
        assert_eq!([most, most].into_iter().sum::<Bytes>(), most);
        let mut sum = most;
        sum += Bytes(7);
        assert_eq!(sum, most);
    }

    #[test]
    fn shows_three_digits() {
        assert_eq!(Bytes(17).to_string(), "17 B");
        assert_eq!(Bytes::mib(2).to_string(), "2 MiB");
        assert_eq!(Bytes(3 << 29).to_string(), "1.50 GiB");
        assert_eq!(Bytes::mib(870).to_string(), "870 MiB");
    }
}
