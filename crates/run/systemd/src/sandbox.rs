//! The access that a unit's confinement (systemd.exec(5)) takes from the library or the launcher,
//! and the least that restores it.

use crate::reach::{Addition, Way};
use crate::service::Service;
use crate::syntax::quoted;
use std::path::{Path, PathBuf};

/// System calls of the library and the launcher that not every filter permits, with the groups that
/// hold them (systemd-analyze syscall-filter). Calls that all programs need are not listed.
const CALLS: [(&str, Of, &[&str]); 15] = [
    ("madvise", Of::Both, &["@system-service"]),
    ("mremap", Of::Both, &["@system-service"]),
    ("mincore", Of::Library, &[]),
    ("prctl", Of::Both, &["@process", "@system-service"]),
    ("get_mempolicy", Of::Library, &["@system-service"]),
    ("sysinfo", Of::Both, &["@system-service"]),
    ("fstatfs", Of::Library, &["@file-system", "@system-service"]),
    ("ioctl", Of::Library, &["@system-service"]),
    ("clone", Of::Both, &["@process", "@system-service"]),
    ("clone3", Of::Both, &["@process", "@system-service"]),
    ("openat2", Of::Launcher, &["@file-system", "@system-service"]),
    ("getdents64", Of::Launcher, &["@file-system", "@system-service"]),
    ("process_madvise", Of::Launcher, &["@ipc", "@system-service"]),
    ("pidfd_open", Of::Launcher, &["@process", "@system-service"]),
    ("setsid", Of::Launcher, &["@system-service"]),
];

#[derive(Clone, Copy, PartialEq)]
enum Of {
    Both,
    Library,
    Launcher,
}

/// Keys that hide directories, and the directories that each hides.
const HIDING: [(&str, &[&str]); 2] =
    [("ProtectHome", &["/home", "/root", "/run/user"]), ("PrivateTmp", &["/tmp", "/var/tmp"])];

/// Returns the lines that the drop-in adds for `files`: paths that the service has to see, execute
/// or map. `has_library`: the library is among them. The error says why the service cannot see a
/// file.
pub(crate) fn additions(
    service: &Service,
    way: Way,
    files: &[PathBuf],
    has_library: bool,
) -> Result<Vec<Addition>, String> {
    let mut added = Vec::new();
    added.extend(filter(service, way, has_library));
    for file in files {
        visible(service, file)?;
        added.extend(bound(service, file));
        added.extend(executable(service, file));
    }
    added.dedup();
    Ok(added)
}

/// Returns the line that makes the filter of system calls permit our calls; `None` if it does
/// already.
fn filter(service: &Service, way: Way, has_library: bool) -> Option<Addition> {
    let entries = service.all("SystemCallFilter");
    let first = entries.first()?;
    let by_default = first.value.starts_with('~');
    let permitted = |call: &str, groups: &[&str]| {
        entries.iter().fold(by_default, |permitted, entry| {
            let (denies, list) = match entry.value.strip_prefix('~') {
                Some(list) => (true, list),
                None => (false, entry.value.as_str()),
            };
            let names = |word: &str| {
                let word = word.split(':').next().unwrap_or_default();
                word == call || word == "@known" || groups.contains(&word)
            };
            if list.split_whitespace().any(names) { !denies } else { permitted }
        })
    };
    let wanted = |of: Of| match of {
        Of::Library => has_library,
        Of::Launcher => way == Way::Launcher,
        Of::Both => has_library || way == Way::Launcher,
    };
    let lacking: Vec<&str> = CALLS
        .iter()
        .filter(|(call, of, groups)| wanted(*of) && !permitted(call, groups))
        .map(|(call, ..)| *call)
        .collect();
    (!lacking.is_empty()).then(|| Addition {
        line: format!("SystemCallFilter={}", lacking.join(" ")),
        why: format!("the unit's SystemCallFilter= kills a program that calls {}", lacking.join(" or ")),
    })
}

/// Fails if the file is in a directory that is hidden from the service, and no line can bring it
/// in.
fn visible(service: &Service, file: &Path) -> Result<(), String> {
    for (key, hidden) in HIDING {
        let value = service.last(key).unwrap_or_default();
        let off =
            ["", "0", "no", "n", "false", "f", "off", "read-only"].contains(&&*value.to_ascii_lowercase());
        if !off && hidden.iter().any(|directory| file.starts_with(directory)) {
            return Err(format!(
                "{key}={value} hides {}: install megapage below /usr (make install)",
                file.display()
            ));
        }
    }
    for key in ["InaccessiblePaths", "InaccessibleDirectories"] {
        let words = service.words(key);
        if let Some(word) = words.iter().find(|word| file.starts_with(word.trim_start_matches(['-', '+']))) {
            return Err(format!("{key}={word} hides {}", file.display()));
        }
    }
    Ok(())
}

/// Returns the line that mounts the file into a separate root or an empty file system.
fn bound(service: &Service, file: &Path) -> Option<Addition> {
    let key = ["RootDirectory", "RootImage"].into_iter().find(|key| service.last(key).is_some());
    let empty = service.words("TemporaryFileSystem");
    let empty = empty.iter().find(|word| file.starts_with(word.split(':').next().unwrap_or_default()));
    let why = match (key, empty) {
        (Some(key), _) => format!("{key}= is another root, which lacks {}", file.display()),
        (None, Some(word)) => format!("TemporaryFileSystem={word} hides {}", file.display()),
        (None, None) => return None,
    };
    let path = quoted(&file.to_string_lossy());
    Some(Addition { line: format!("BindReadOnlyPaths={path}"), why })
}

/// Returns the line that permits to execute the file, if the unit forbids it. The code of a library
/// cannot be mapped without that.
fn executable(service: &Service, file: &Path) -> Option<Addition> {
    let deepest = |key: &str| {
        let words = service.words(key).into_iter();
        let depths = words.filter_map(|word| {
            let path = Path::new(word.trim_start_matches(['-', '+']));
            file.starts_with(path).then(|| path.components().count())
        });
        depths.max()
    };
    let forbidden = deepest("NoExecPaths")?;
    if deepest("ExecPaths").is_some_and(|permitted| permitted >= forbidden) {
        return None;
    }
    let path = quoted(&file.to_string_lossy());
    let why = format!("NoExecPaths= forbids to map the code of {}", file.display());
    Some(Addition { line: format!("ExecPaths={path}"), why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::name::UnitName;
    use crate::service::Entry;

    const LIBRARY: &str = "/usr/local/lib/megapage/libmegapage.so";

    fn lines(way: Way, unit: &str) -> Result<Vec<String>, String> {
        let entries = crate::syntax::parse(unit)
            .into_iter()
            .map(|it| Entry { key: it.key, value: it.value, path: "x".into() })
            .collect();
        let name = UnitName::parse("x").unwrap();
        let service = Service { name, drop_ins: Vec::new(), entries };
        let added = additions(&service, way, &[LIBRARY.into()], true)?;
        Ok(added.into_iter().map(|it| it.line).collect())
    }

    #[test]
    fn a_unit_that_confines_nothing_needs_nothing() {
        let unit = "ProtectSystem=strict\nProtectHome=yes\nPrivateTmp=yes\nMemoryDenyWriteExecute=yes\nDynamicUser=yes";
        assert_eq!(lines(Way::Environment, unit).unwrap(), [""; 0]);
        assert_eq!(lines(Way::Launcher, unit).unwrap(), [""; 0]);
    }

    #[test]
    fn a_filter_gets_the_calls_that_it_lacks() {
        let of = |filter: &str| lines(Way::Environment, filter).unwrap();
        let debian = "SystemCallFilter=@system-service\nSystemCallFilter=~ @privileged @resources";
        assert_eq!(of(debian), ["SystemCallFilter=mincore"]);
        assert_eq!(of("SystemCallFilter=~@mount"), [""; 0]);
        assert_eq!(of("SystemCallFilter=~mincore:EPERM madvise"), ["SystemCallFilter=madvise mincore"]);
        assert_eq!(of("SystemCallFilter=@system-service mincore\nSystemCallFilter=~@ipc"), [""; 0]);
        assert_eq!(of("SystemCallFilter=~x\nSystemCallFilter="), [""; 0], "reset");
        let launched =
            lines(Way::Launcher, "SystemCallFilter=@system-service\nSystemCallFilter=~@ipc").unwrap();
        assert_eq!(launched, ["SystemCallFilter=mincore process_madvise"]);
    }

    #[test]
    fn a_library_that_may_not_be_executed_is_permitted_alone() {
        let of = |unit: &str| lines(Way::Environment, unit).unwrap();
        let wanted = [format!("ExecPaths={LIBRARY}")];
        assert_eq!(of("NoExecPaths=/\nExecPaths=/usr/bin/redis-server /usr/lib /lib"), wanted);
        assert_eq!(of("NoExecPaths=/\nExecPaths=/usr/bin /usr/local"), [""; 0]);
        assert_eq!(of("NoExecPaths=/\nExecPaths=/usr\nNoExecPaths=-/usr/local/lib"), wanted);
        assert_eq!(of("NoExecPaths=/var"), [""; 0]);
    }

    #[test]
    fn another_root_gets_the_library_and_what_hides_it_is_named() {
        let of = |unit: &str| lines(Way::Environment, unit);
        assert_eq!(of("RootDirectory=/srv/root").unwrap(), [format!("BindReadOnlyPaths={LIBRARY}")]);
        assert_eq!(of("TemporaryFileSystem=/usr:ro").unwrap(), [format!("BindReadOnlyPaths={LIBRARY}")]);
        assert!(
            of("InaccessiblePaths=-/usr/local").unwrap_err().contains("InaccessiblePaths=-/usr/local hides")
        );
        let file = [PathBuf::from("/root/libmegapage.so")];
        let name = UnitName::parse("x").unwrap();
        let entries = vec![Entry { key: "ProtectHome".into(), value: "true".into(), path: "x".into() }];
        let service = Service { name, drop_ins: Vec::new(), entries };
        let why = additions(&service, Way::Environment, &file, true).unwrap_err();
        assert!(why.contains("ProtectHome=true hides /root/libmegapage.so"), "{why}");
    }
}
