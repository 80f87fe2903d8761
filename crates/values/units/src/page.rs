//! Page sizes.

use crate::{Bytes, ParseBytesError};
use std::fmt;
use std::str::FromStr;

/// 4 KiB in bytes: the base page of x86-64, and of arm64 as far as it is supported.
pub const BASE_PAGE: usize = 4 << 10;
/// 2 MiB in bytes: one huge page, one region.
pub const HUGE_2M: usize = 2 << 20;
/// 1 GiB in bytes.
pub const HUGE_1G: usize = 1 << 30;

/// A page size that the memory-management unit or the kernel's THP machinery knows: a power of two
/// of at least 4 KiB. The sizes between 4 KiB and 2 MiB are mTHP sizes.
///
/// ```
/// use megapage_units::PageSize;
///
/// let size: PageSize = "2MB".parse()?;
/// assert_eq!(size, PageSize::HUGE_2M);
/// assert_eq!(format!("hugepages-{}kB is {size}", size.kib()), "hugepages-2048kB is 2m");
/// assert!("3m".parse::<PageSize>().is_err());
/// # Ok::<(), megapage_units::ParsePageSizeError>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageSize(u64);

impl Default for PageSize {
    /// Returns the base page size.
    fn default() -> PageSize {
        PageSize::BASE
    }
}

impl PageSize {
    /// 4 KiB.
    pub const BASE: PageSize = PageSize(BASE_PAGE as u64);
    /// 2 MiB.
    pub const HUGE_2M: PageSize = PageSize(HUGE_2M as u64);
    /// 1 GiB.
    pub const HUGE_1G: PageSize = PageSize(HUGE_1G as u64);

    /// Returns a page size of `bytes` bytes; `None` unless it is a power of two of at least 4096.
    pub const fn new(bytes: u64) -> Option<PageSize> {
        if bytes >= BASE_PAGE as u64 && bytes.is_power_of_two() { Some(PageSize(bytes)) } else { None }
    }

    /// Returns the size in bytes.
    pub const fn bytes(self) -> Bytes {
        Bytes(self.0)
    }

    /// Returns the size in kB, as kernel file names spell it (`hugepages-2048kB`).
    pub const fn kib(self) -> u64 {
        self.0 >> 10
    }
}

/// Writes `4k`, `64k`, `2m`, `1g`.
impl fmt::Display for PageSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.0 {
            n if n >= 1 << 30 => format!("{}g", n >> 30),
            n if n >= 1 << 20 => format!("{}m", n >> 20),
            n => format!("{}k", n >> 10),
        };
        f.pad(&text)
    }
}

/// Reason why a page size could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ParsePageSizeError {
    /// The text is not a size.
    Size(ParseBytesError),
    /// The size is not a power of two of at least 4 KiB.
    NotAPage(String),
}

impl fmt::Display for ParsePageSizeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Size(error) => error.fmt(f),
            Self::NotAPage(text) => write!(f, "'{text}' is not a page size; use 4k, 2m or 1g"),
        }
    }
}

impl std::error::Error for ParsePageSizeError {}

impl FromStr for PageSize {
    type Err = ParsePageSizeError;

    fn from_str(text: &str) -> Result<PageSize, ParsePageSizeError> {
        let bytes: Bytes = text.parse().map_err(ParsePageSizeError::Size)?;
        PageSize::new(bytes.0).ok_or_else(|| ParsePageSizeError::NotAPage(text.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_and_shows_page_sizes() {
        for text in ["4k", "64k", "2m", "1g"] {
            assert_eq!(text.parse::<PageSize>().unwrap().to_string(), text);
        }
        assert_eq!("2MB".parse(), Ok(PageSize::HUGE_2M));
        assert!(matches!("3m".parse::<PageSize>(), Err(ParsePageSizeError::NotAPage(_))));
        assert!(matches!("2k".parse::<PageSize>(), Err(ParsePageSizeError::NotAPage(_))));
        assert!(matches!("big".parse::<PageSize>(), Err(ParsePageSizeError::Size(_))));
    }
}
