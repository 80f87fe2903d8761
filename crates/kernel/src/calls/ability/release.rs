//! Releases of Linux, as uname(2) names them.

use crate::KernelRoot;
use std::fmt;

/// Release of mainline Linux: `6.12`. Suffixes of a distribution or a stable series are left out.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Release {
    /// First number.
    pub major: u16,
    /// Second number.
    pub minor: u16,
}

impl Release {
    /// Returns the release `major`.`minor`.
    pub const fn new(major: u16, minor: u16) -> Release {
        Release { major, minor }
    }

    /// Reads `6.1.0-56-cloud-amd64` and the like. Returns `None` if the text does not begin with
    /// two numbers.
    pub fn parse(text: &str) -> Option<Release> {
        let mut numbers = text.trim().splitn(3, '.');
        let major = numbers.next()?.parse().ok()?;
        let second = numbers.next()?;
        let digits = second.bytes().take_while(u8::is_ascii_digit).count();
        Some(Release { major, minor: second[..digits].parse().ok()? })
    }

    /// Returns the release of the kernel of `root` (`/proc/sys/kernel/osrelease`); `None` if it
    /// cannot be read or understood.
    pub fn of(root: &KernelRoot) -> Option<Release> {
        Release::parse(&root.read("proc/sys/kernel/osrelease").ok()?)
    }
}

impl fmt::Display for Release {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_read_as_distributions_write_them() {
        let of = |text: &str| Release::parse(text).map(|release| release.to_string());
        assert_eq!(of("6.1.0-56-cloud-amd64\n").as_deref(), Some("6.1"));
        assert_eq!(of("5.14.0-570.12.1.el9_6.x86_64").as_deref(), Some("5.14"));
        assert_eq!(of("7.3-rc1").as_deref(), Some("7.3"));
        assert_eq!(of("6.18.44-fc-v669").as_deref(), Some("6.18"));
        for bad in ["", "6", "six.one", "6.", ".1", "6.x", "99999.1"] {
            assert_eq!(of(bad), None, "{bad}");
        }
        assert!(Release::new(5, 10) < Release::new(6, 1) && Release::new(6, 2) < Release::new(6, 12));
    }
}
