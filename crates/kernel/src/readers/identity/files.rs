//! Accounts by /etc/passwd and /etc/group alone, for a program that is linked statically. The
//! modules of the name service fit only the C library that they were built with. With them a static
//! program would load the machine's C library into itself.
//!
//! Source: passwd(5), group(5).

use super::Account;
use crate::trusted::read_regular;
use std::io;
use std::path::Path;

/// The account that is wanted.
#[derive(Clone, Copy)]
pub(super) enum Wanted<'a> {
    /// The one with this login name.
    Name(&'a str),
    /// The one with this user number.
    Number(u32),
}

/// Returns the account, as the files below `root` have it.
pub(super) fn account(root: &Path, wanted: Wanted) -> io::Result<Option<Account>> {
    let found = read(root, "etc/passwd")?.lines().find_map(|line| {
        let fields: Vec<&str> = line.split(':').collect();
        let &[name, _, uid, gid, ..] = &fields[..] else { return None };
        let (uid, gid) = (uid.parse().ok()?, gid.parse().ok()?);
        let is_wanted = match wanted {
            Wanted::Name(wanted) => name == wanted,
            Wanted::Number(wanted) => uid == wanted,
        };
        is_wanted.then(|| Account { name: name.to_string(), uid, gid, groups: vec![gid] })
    });
    let Some(mut account) = found else { return Ok(None) };
    for line in read(root, "etc/group")?.lines() {
        let fields: Vec<&str> = line.split(':').collect();
        let &[_, _, gid, members] = &fields[..] else { continue };
        if let Ok(gid) = gid.parse()
            && !account.groups.contains(&gid)
            && members.split(',').any(|member| member == account.name)
        {
            account.groups.push(gid);
        }
    }
    Ok(Some(account))
}

/// Returns the name of a group.
pub(super) fn group_name(root: &Path, gid: u32) -> Option<String> {
    let text = read(root, "etc/group").ok()?;
    text.lines().find_map(|line| {
        let mut fields = line.split(':');
        let (name, number) = (fields.next()?, fields.nth(1)?);
        (number.parse() == Ok(gid)).then(|| name.to_string())
    })
}

/// The longest file of accounts that is read, in bytes.
const LONGEST: u64 = 64 << 20;

/// Reads a file of accounts. A missing file counts as empty: a container may have neither.
fn read(root: &Path, path: &str) -> io::Result<String> {
    match read_regular(&root.join(path), LONGEST) {
        Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).into_owned()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(String::new()),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn accounts_and_groups_are_read_from_files() {
        let root = tempfile::tempdir().unwrap();
        let is = |wanted| account(root.path(), wanted).unwrap();
        assert_eq!(is(Wanted::Name("root")), None, "no file");
        assert_eq!(group_name(root.path(), 0), None);
        fs::create_dir(root.path().join("etc")).unwrap();
        // An image may hold anything.
        let pipe = root.path().join("etc/passwd");
        let mode = rustix::fs::Mode::from_raw_mode(0o600);
        rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, mode, 0).unwrap();
        assert_eq!(account(root.path(), Wanted::Name("root")).unwrap_err().to_string(), "not a regular file");
        fs::remove_file(&pipe).unwrap();
        let passwd =
            "root:x:0:0:root:/root:/bin/sh\nbroken\nodd:x:many:1::/:\nann:x:1000:100::/home/ann:/bin/sh\n";
        fs::write(root.path().join("etc/passwd"), passwd).unwrap();
        let groups = "root:x:0:\nusers:x:100:ann\nkvm:x:36:bob,ann\nannex:x:37:anna\nshort:x\n";
        fs::write(root.path().join("etc/group"), groups).unwrap();
        let ann = Account { name: "ann".into(), uid: 1000, gid: 100, groups: vec![100, 36] };
        assert_eq!(is(Wanted::Name("ann")), Some(ann.clone()));
        assert_eq!(is(Wanted::Number(1000)), Some(ann));
        assert_eq!(is(Wanted::Name("odd")), None, "a number that is none");
        assert_eq!(is(Wanted::Number(7)), None);
        assert_eq!(group_name(root.path(), 36).as_deref(), Some("kvm"));
        assert_eq!(group_name(root.path(), 5), None);
    }
}
