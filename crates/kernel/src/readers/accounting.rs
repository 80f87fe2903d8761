//! Counters of every process's work, which the kernel keeps no matter who reads them. They count
//! system calls that read and write, and segments that its network receives (proc_pid_io(5),
//! proc_pid_net(5)).

use crate::{KernelError, KernelRoot};
use megapage_units::Pid;
use std::path::PathBuf;

/// Returns the number of system calls by which `pid` has read and written so far (`syscr` and
/// `syscw`). Calls of recv(2) and send(2) are not counted. Needs the right to trace the process.
pub fn io_calls(root: &KernelRoot, pid: Pid) -> Result<u64, KernelError> {
    let path = format!("proc/{pid}/io");
    let text = root.read(&path)?;
    let field =
        |name: &str| text.lines().find_map(|line| line.strip_prefix(name)?.trim().parse::<u64>().ok());
    field("syscr:").zip(field("syscw:")).map(|(read, written)| read + written).ok_or_else(|| {
        KernelError::Parse {
            path: root.path(path),
            line: 1,
            what: "expected lines 'syscr:' and 'syscw:'".into(),
        }
    })
}

/// Returns the TCP segments that the network of `pid` has received so far (`InSegs`, RFC 4022).
/// They include those of all processes in its network namespace.
pub fn tcp_segments(root: &KernelRoot, pid: Pid) -> Result<u64, KernelError> {
    let path = format!("proc/{pid}/net/snmp");
    let text = root.read(&path)?;
    in_segments(&text).ok_or_else(|| KernelError::Parse {
        path: root.path(path),
        line: 1,
        what: "expected two lines 'Tcp:' with InSegs".into(),
    })
}

/// Returns the value of InSegs from a line of names and a line of values.
fn in_segments(text: &str) -> Option<u64> {
    let mut lines = text.lines().filter_map(|line| line.strip_prefix("Tcp:"));
    let (names, values) = (lines.next()?, lines.next()?);
    let at = names.split_whitespace().position(|name| name == "InSegs")?;
    values.split_whitespace().nth(at)?.parse().ok()
}

/// Returns the name of the network namespace of `pid`, such as `net:[4026531840]`. Needs the right
/// to trace the process.
pub fn network_namespace(root: &KernelRoot, pid: Pid) -> Result<PathBuf, KernelError> {
    let path = root.path(format!("proc/{pid}/ns/net"));
    std::fs::read_link(&path).map_err(|source| KernelError::Io { path, source })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::captured_tree;

    #[test]
    fn calls_and_segments_are_read() {
        let (_keep, root) = captured_tree(&[
            ("proc/9/io", "rchar: 10\nwchar: 20\nsyscr: 30\nsyscw: 12\nread_bytes: 0\n"),
            (
                "proc/9/net/snmp",
                "Ip: Forwarding DefaultTTL\nIp: 1 64\nTcp: RtoAlgorithm InErrs InSegs OutSegs\nTcp: 1 5 4711 9\n",
            ),
            ("proc/8/io", "rchar: 10\n"),
        ]);
        assert_eq!(io_calls(&root, Pid(9)).unwrap(), 42);
        assert_eq!(tcp_segments(&root, Pid(9)).unwrap(), 4711);
        assert!(io_calls(&root, Pid(8)).unwrap_err().to_string().contains("syscr"));
        assert!(tcp_segments(&root, Pid(8)).unwrap_err().is_gone());
    }

    #[test]
    fn our_own_calls_are_counted() {
        let (root, own) = (KernelRoot::live(), Pid(std::process::id().cast_signed()));
        let before = io_calls(&root, own).unwrap();
        for _ in 0..100 {
            std::fs::write("/dev/null", "x").unwrap();
        }
        let counted = io_calls(&root, own).unwrap() - before;
        assert!(counted >= 100, "{counted}");
        assert!(network_namespace(&root, own).unwrap().display().to_string().starts_with("net:["));
    }
}
