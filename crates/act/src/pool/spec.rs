//! Grammar of a pool on the command line: `2m=512`, `1g=2`, hugeadm's `2MB:+64`, memory in place of
//! a count (`2m=4g`), and a count for each node as the kernel's boot parameter has it
//! (`2m=0:100,1:300`).

use megapage_kernel::hugetlb::PoolScope;
use megapage_units::{Bytes, PageSize};
use std::fmt;
use std::str::FromStr;
use thiserror::Error;

/// The page size that a pool is named by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SizeName {
    /// `2m`, `2MB`, `1g`.
    Size(PageSize),
    /// `default`: the `Hugepagesize` of meminfo.
    Default,
}

/// Quantity: pages, or memory that must be a whole number of pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// A bare value.
    Pages(u64),
    /// A value with a unit.
    Memory(Bytes),
}

impl Quantity {
    /// Returns the number of pages of `size`; `None` if the memory is no whole number of them.
    pub fn pages(self, size: PageSize) -> Option<u64> {
        match self {
            Quantity::Pages(pages) => Some(pages),
            Quantity::Memory(bytes) if bytes.0.is_multiple_of(size.bytes().0) => {
                Some(bytes.0 / size.bytes().0)
            }
            Quantity::Memory(_) => None,
        }
    }
}

/// Value asked for, absolute or relative to the present one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Amount {
    /// `512`
    Exactly(Quantity),
    /// `+64`
    More(Quantity),
    /// `-64`
    Less(Quantity),
}

/// One argument: a pool, and the value asked for on each scope named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Spec {
    /// The argument as it was written, for messages.
    pub text: String,
    /// The page size.
    pub size: SizeName,
    /// One entry for the machine, or one for each node named.
    pub amounts: Vec<(PoolScope, Amount)>,
}

/// Reason that an argument is no pool.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum SpecError {
    /// There is no `=` or `:`, or nothing on one side of it.
    #[error("'{0}' is not a pool; write SIZE=PAGES, such as 2m=512, 2MB:+64 or 1g=2")]
    Form(String),
    /// The text before the separator is no page size.
    #[error("'{text}': {why}")]
    Size {
        /// The argument.
        text: String,
        /// Message of the size's own parser.
        why: String,
    },
    /// The text after the separator is no number.
    #[error("'{text}': '{value}' is not a number of pages; write 512, +64, -64, or memory such as 4g")]
    Count {
        /// The argument.
        text: String,
        /// The part that could not be read.
        value: String,
    },
    /// A node is named twice.
    #[error("'{text}': node {node} is named twice")]
    NodeTwice {
        /// The argument.
        text: String,
        /// The node.
        node: u32,
    },
}

impl fmt::Display for Spec {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&self.text)
    }
}

impl FromStr for Spec {
    type Err = SpecError;

    fn from_str(text: &str) -> Result<Spec, SpecError> {
        let form = || SpecError::Form(text.to_string());
        let (size, values) = text.split_once(['=', ':']).ok_or_else(form)?;
        let (size, values) = (size.trim(), values.trim());
        if size.is_empty() || values.is_empty() {
            return Err(form());
        }
        let size = if size.eq_ignore_ascii_case("default") {
            SizeName::Default
        } else {
            let bad = |why| SpecError::Size { text: text.to_string(), why };
            SizeName::Size(
                size.parse().map_err(|error: megapage_units::ParsePageSizeError| bad(error.to_string()))?,
            )
        };
        let mut amounts: Vec<(PoolScope, Amount)> = Vec::new();
        for part in values.split(',') {
            let bad = || SpecError::Count { text: text.to_string(), value: part.to_string() };
            match part.split_once(':') {
                None if values.contains(',') => return Err(bad()),
                None => amounts.push((PoolScope::Machine, amount(part).ok_or_else(bad)?)),
                Some((node, value)) => {
                    let node = node.trim().parse().map_err(|_| bad())?;
                    if amounts.iter().any(|(scope, _)| *scope == PoolScope::Node(node)) {
                        return Err(SpecError::NodeTwice { text: text.to_string(), node });
                    }
                    amounts.push((PoolScope::Node(node), amount(value).ok_or_else(bad)?));
                }
            }
        }
        Ok(Spec { text: text.to_string(), size, amounts })
    }
}

fn amount(text: &str) -> Option<Amount> {
    let text = text.trim();
    let (make, value): (fn(Quantity) -> Amount, &str) = match text.as_bytes().first()? {
        b'+' => (Amount::More, &text[1..]),
        b'-' => (Amount::Less, &text[1..]),
        _ => (Amount::Exactly, text),
    };
    let quantity = if value.bytes().all(|byte| byte.is_ascii_digit()) {
        Quantity::Pages(value.parse().ok()?)
    } else {
        // A fraction is refused without a unit: half a page is no pool, but half a gigabyte is.
        value.ends_with(|last: char| last.is_ascii_alphabetic()).then_some(())?;
        Quantity::Memory(value.parse().ok()?)
    };
    Some(make(quantity))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(text: &str) -> (SizeName, PoolScope, Amount) {
        let spec: Spec = text.parse().unwrap();
        assert_eq!(spec.amounts.len(), 1, "{text}");
        (spec.size, spec.amounts[0].0, spec.amounts[0].1)
    }

    #[test]
    fn every_spelling() {
        use Amount::*;
        let (two, one_g) = (SizeName::Size(PageSize::HUGE_2M), SizeName::Size(PageSize::HUGE_1G));
        let machine = PoolScope::Machine;
        assert_eq!(one("2m=512"), (two, machine, Exactly(Quantity::Pages(512))));
        assert_eq!(one("2MB:512"), (two, machine, Exactly(Quantity::Pages(512))));
        assert_eq!(one("2MB:+64"), (two, machine, More(Quantity::Pages(64))));
        assert_eq!(one("2MB:-64"), (two, machine, Less(Quantity::Pages(64))));
        assert_eq!(one("1g=2"), (one_g, machine, Exactly(Quantity::Pages(2))));
        assert_eq!(one("2048kB=0"), (two, machine, Exactly(Quantity::Pages(0))));
        assert_eq!(one("default:+1"), (SizeName::Default, machine, More(Quantity::Pages(1))));
        assert_eq!(one("2m=4g"), (two, machine, Exactly(Quantity::Memory(Bytes::gib(4)))));
        assert_eq!(Quantity::Memory(Bytes::gib(4)).pages(PageSize::HUGE_2M), Some(2048));
        assert_eq!(Quantity::Memory(Bytes::mib(3)).pages(PageSize::HUGE_2M), None);
    }

    #[test]
    fn nodes_are_listed_as_the_boot_parameter_has_them() {
        let spec: Spec = "2m=0:100,1:+300".parse().unwrap();
        assert_eq!(
            spec.amounts,
            [
                (PoolScope::Node(0), Amount::Exactly(Quantity::Pages(100))),
                (PoolScope::Node(1), Amount::More(Quantity::Pages(300))),
            ]
        );
        assert_eq!("2MB:0:100".parse::<Spec>().unwrap().amounts[0].0, PoolScope::Node(0));
        let twice = "2m=1:1,1:2".parse::<Spec>().unwrap_err();
        assert_eq!(twice.to_string(), "'2m=1:1,1:2': node 1 is named twice");
    }

    #[test]
    fn what_is_no_pool_is_refused() {
        for text in ["", "2m", "=512", "2m=", ":", " = "] {
            assert_eq!(text.parse::<Spec>(), Err(SpecError::Form(text.to_string())), "{text}");
        }
        for text in
            ["2m=many", "2m=+", "2m=1.5", "2m=--1", "2m=1,2", "2m=0:1,2", "2m=a:1", "2m=99999999999999999999"]
        {
            assert!(matches!(text.parse::<Spec>(), Err(SpecError::Count { .. })), "{text}");
        }
        let error = "3m=1".parse::<Spec>().unwrap_err().to_string();
        assert_eq!(error, "'3m=1': '3m' is not a page size; use 4k, 2m or 1g");
    }
}
