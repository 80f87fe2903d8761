//! Pressure stall information: how much of the time tasks wait for memory (Documentation/accounting/psi.rst).

use crate::{KernelError, KernelRoot};
pub use megapage_snapshot::Pressure;

const PRESSURE: &str = "proc/pressure/memory";

/// The machine's memory pressure. `Ok(None)` where the kernel does not measure it: built without PSI, or started
/// with `psi=0`.
pub fn memory_pressure(root: &KernelRoot) -> Result<Option<Pressure>, KernelError> {
    let text = match root.read(PRESSURE) {
        // EOPNOTSUPP: built in and switched off.
        Err(error) if error.is_gone() || error.raw_os_error() == Some(libc::EOPNOTSUPP) => return Ok(None),
        text => text?,
    };
    parse(&text).map(Some).ok_or_else(|| KernelError::Parse {
        path: root.path(PRESSURE),
        line: 1,
        what: "expected lines 'some' and 'full' with avg10, avg60 and total".into(),
    })
}

/// `some avg10=0.00 avg60=0.00 avg300=0.00 total=0`, then the same with `full`.
fn parse(text: &str) -> Option<Pressure> {
    let field = |kind: &str, name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(kind))?;
        line.split_whitespace().find_map(|field| field.strip_prefix(name)?.strip_prefix('='))
    };
    Some(Pressure {
        some_10s: field("some ", "avg10")?.parse().ok()?,
        some_60s: field("some ", "avg60")?.parse().ok()?,
        full_10s: field("full ", "avg10")?.parse().ok()?,
        some_total_us: field("some ", "total")?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::captured_tree;

    #[test]
    fn both_lines_are_read() {
        let (_keep, root) = captured_tree(&[(
            PRESSURE,
            "some avg10=12.50 avg60=3.00 avg300=0.70 total=81234567\n\
             full avg10=4.25 avg60=1.00 avg300=0.20 total=23456789\n",
        )]);
        let expected = Pressure { some_10s: 12.5, some_60s: 3.0, full_10s: 4.25, some_total_us: 81_234_567 };
        assert_eq!(memory_pressure(&root).unwrap(), Some(expected));
    }

    #[test]
    fn a_kernel_without_has_none_and_nonsense_is_an_error() {
        let (_keep, root) = captured_tree(&[("proc/x", "")]);
        assert_eq!(memory_pressure(&root).unwrap(), None);
        let (_keep, root) = captured_tree(&[(PRESSURE, "some avg10=0.00\n")]);
        assert!(memory_pressure(&root).unwrap_err().to_string().contains("expected lines 'some' and 'full'"));
        memory_pressure(&KernelRoot::live()).unwrap();
    }
}
