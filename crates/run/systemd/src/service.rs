//! A service as systemd sees it: its unit file merged with all drop-ins.

use crate::command::{ExecCommand, commands};
use crate::error::{SystemdError, refused};
use crate::files::{Files, Found, LOAD_PATH};
use crate::name::UnitName;
use crate::specifier::resolved;
use crate::syntax::{parse, words};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Directory of the drop-ins for all services.
const OF_ALL: &str = "service.d";

/// One assignment of the section [Service].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The key.
    pub key: String,
    /// The value as written.
    pub value: String,
    /// The file that holds it.
    pub path: PathBuf,
}

/// A service with its merged assignments.
#[derive(Clone, Debug)]
pub struct Service {
    /// Its name; for an alias, that of the file to which it leads.
    pub name: UnitName,
    /// The drop-ins, in the order in which they are read.
    pub drop_ins: Vec<PathBuf>,
    /// The assignments of [Service], in the order in which they are read.
    pub entries: Vec<Entry>,
}

impl Service {
    /// Reads a service; `None` if there is none with that name. `instead` gives the file at a path
    /// another text, or removes it (`None`): the unit as it would be.
    pub(crate) fn load(
        files: &Files,
        name: &UnitName,
        instead: Option<(&Path, Option<&str>)>,
    ) -> Result<Option<Service>, SystemdError> {
        let mut found = files.unit(name.as_str())?;
        if found.is_none()
            && let Some(template) = name.template()
        {
            found = files.unit(template.as_str())?;
        }
        let (fragment, text) = match found {
            None => return Ok(None),
            Some(Found::Masked(path)) => {
                let path = path.display();
                return Err(refused(name, format!("is masked by {path}; systemctl unmask {name}")));
            }
            Some(Found::Text(path, text)) => (path, text),
        };
        let name = own_name(name, &fragment);
        let mut service = Service { name, drop_ins: Vec::new(), entries: Vec::new() };
        service.take(&fragment, &text);
        for (path, text) in drop_ins(files, &service.name, instead)? {
            service.take(&path, &text);
            service.drop_ins.push(path);
        }
        Ok(Some(service))
    }

    fn take(&mut self, path: &Path, text: &str) {
        let own = parse(text).into_iter().filter(|it| it.section == "Service");
        self.entries.extend(own.map(|it| Entry { key: it.key, value: it.value, path: path.into() }));
    }

    /// Returns the value of a key of which the last counts; `None` if it is not set, or empty.
    pub fn last(&self, key: &str) -> Option<&str> {
        let last = self.entries.iter().rfind(|entry| entry.key == key)?;
        Some(last.value.as_str()).filter(|value| !value.is_empty())
    }

    /// Returns true if a key is on.
    pub fn is_on(&self, key: &str) -> bool {
        let value = self.last(key).unwrap_or_default().to_ascii_lowercase();
        matches!(value.as_str(), "1" | "yes" | "y" | "true" | "t" | "on")
    }

    /// Returns the entries of a cumulative key: those after the last empty one.
    pub fn all(&self, key: &str) -> Vec<&Entry> {
        let all: Vec<&Entry> = self.entries.iter().filter(|entry| entry.key == key).collect();
        let reset = all.iter().rposition(|entry| entry.value.is_empty()).map_or(0, |at| at + 1);
        all[reset..].to_vec()
    }

    /// Returns the words of a cumulative key. Skips values with an open quote, as systemd does.
    pub fn words(&self, key: &str) -> Vec<String> {
        let entries = self.all(key).into_iter();
        entries.filter_map(|entry| words(&entry.value)).flatten().map(|word| word.text).collect()
    }

    /// Returns the commands of ExecStart=, at least one.
    pub fn commands(&self) -> Result<Vec<ExecCommand>, SystemdError> {
        let mut found = Vec::new();
        for entry in self.all("ExecStart") {
            found.extend(commands(&entry.value).map_err(|what| refused(entry.path.display(), what))?);
        }
        match found.is_empty() {
            true => Err(SystemdError::NoProgram { unit: self.name.clone() }),
            false => Ok(found),
        }
    }

    /// Returns the variables of Environment=. Specifiers are replaced if the name determines them.
    pub fn environment(&self) -> BTreeMap<String, String> {
        let words = self.words("Environment").into_iter();
        let pairs = words.filter_map(|word| {
            let (name, value) = word.split_once('=')?;
            Some((name.to_string(), resolved(value, &self.name).unwrap_or_else(|| value.to_string())))
        });
        pairs.collect()
    }

    /// Returns the user that it runs as, if that is not root.
    pub fn user(&self) -> Option<&str> {
        match self.last("User") {
            Some("root" | "0") => None,
            Some(user) => Some(user),
            None if self.is_on("DynamicUser") => Some("a dynamic user"),
            None => None,
        }
    }
}

/// Returns the name of the file to which an alias leads; an instance keeps its own name.
fn own_name(name: &UnitName, fragment: &Path) -> UnitName {
    let file =
        fragment.file_name().and_then(|file| file.to_str()).and_then(|file| UnitName::parse(file).ok());
    match (file, name.instance()) {
        (Some(file), None) => file,
        // The alias of a template leads to the same instance of the other template.
        (Some(file), Some(instance)) if file.instance() == Some("") && !instance.is_empty() => {
            UnitName::parse(&format!("{}@{instance}", file.prefix())).unwrap_or(file)
        }
        _ => name.clone(),
    }
}

/// Returns the drop-ins that count, sorted by file name. Of several with one name, the one in the
/// most important place counts, and there the one in the most specific directory. Those of all
/// services (`service.d`) count only if no other has the name.
fn drop_ins(
    files: &Files,
    name: &UnitName,
    instead: Option<(&Path, Option<&str>)>,
) -> Result<Vec<(PathBuf, String)>, SystemdError> {
    let mut chosen: BTreeMap<String, PathBuf> = BTreeMap::new();
    let directories = name.drop_in_directories();
    let own = LOAD_PATH.iter().flat_map(|place| directories.iter().map(move |own| (place, own.as_str())));
    for (place, own) in own.chain(LOAD_PATH.iter().map(|place| (place, OF_ALL))) {
        let directory = files.root().join(place).join(own);
        let mut names = files.names(&directory);
        if let Some((path, Some(_))) = instead
            && path.parent() == Some(&directory)
        {
            names.extend(path.file_name().and_then(|file| file.to_str()).map(String::from));
        }
        for file in names.into_iter().filter(|file| file.ends_with(".conf") && !file.starts_with('.')) {
            let path = directory.join(&file);
            if !matches!(instead, Some((gone, None)) if gone == path) {
                chosen.entry(file).or_insert(path);
            }
        }
    }
    let mut found = Vec::new();
    for path in chosen.into_values() {
        match instead {
            Some((new, Some(text))) if new == path => found.push((path, text.to_string())),
            _ => {
                if let Some(Found::Text(_, text)) = files.read(&path)? {
                    found.push((path, text));
                }
            }
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    struct Tree(tempfile::TempDir);

    impl Tree {
        fn new(files: &[(&str, &str)]) -> Tree {
            let tree = Tree(tempfile::tempdir().unwrap());
            for (path, text) in files {
                let path = tree.path(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            tree
        }

        fn path(&self, path: &str) -> PathBuf {
            self.0.path().join(path)
        }

        fn load(&self, name: &str) -> Service {
            let name = UnitName::parse(name).unwrap();
            Service::load(&Files::new(self.0.path()), &name, None).unwrap().unwrap()
        }
    }

    const UNIT: &str = "usr/lib/systemd/system/a-b.service";

    #[test]
    fn drop_ins_are_merged_by_their_names() {
        let tree = Tree::new(&[
            (UNIT, "[Service]\nExecStart=/bin/a\nEnvironment=A=1 \"B=x y\"\nUser=first\n[Unit]\nUser=no\n"),
            ("usr/lib/systemd/system/a-b.service.d/20.conf", "[Service]\nUser=of-the-package\n"),
            ("etc/systemd/system/a-b.service.d/20.conf", "[Service]\nUser=of-etc\n"),
            ("etc/systemd/system/a-.service.d/10.conf", "[Service]\nEnvironment=A=2\n"),
            ("run/systemd/system/service.d/30.conf", "[Service]\nEnvironment=\nEnvironment=C=3\n"),
            ("etc/systemd/system/a-b.service.d/notes.txt", "[Service]\nUser=none\n"),
        ]);
        let service = tree.load("a-b");
        assert_eq!(service.last("User"), Some("of-etc"));
        assert_eq!(service.environment().into_iter().collect::<Vec<_>>(), [("C".into(), "3".into())]);
        let names: Vec<_> = service.drop_ins.iter().map(|path| path.file_name().unwrap()).collect();
        assert_eq!(names, ["10.conf", "20.conf", "30.conf"]);
    }

    #[test]
    fn etc_replaces_the_packages_unit_and_masks_it() {
        let tree = Tree::new(&[
            (UNIT, "[Service]\nExecStart=/bin/a\n"),
            ("etc/systemd/system/a-b.service", "[Service]\nExecStart=/bin/b\n"),
        ]);
        assert_eq!(tree.load("a-b").commands().unwrap()[0].program, "/bin/b");
        fs::remove_file(tree.path("etc/systemd/system/a-b.service")).unwrap();
        symlink("/dev/null", tree.path("etc/systemd/system/a-b.service")).unwrap();
        let name = UnitName::parse("a-b").unwrap();
        let error = Service::load(&Files::new(tree.0.path()), &name, None).unwrap_err();
        assert!(error.to_string().contains("is masked by"), "{error}");
    }

    #[test]
    fn aliases_lead_to_the_unit_and_instances_to_their_template() {
        let tree = Tree::new(&[
            (UNIT, "[Service]\nExecStart=/bin/a\n"),
            ("usr/lib/systemd/system/t@.service", "[Service]\nExecStart=/bin/t %i\n"),
            ("etc/systemd/system/t@1.service.d/x.conf", "[Service]\nUser=one\n"),
            ("etc/systemd/system/t@.service.d/x.conf", "[Service]\nUser=all\n"),
        ]);
        symlink("/usr/lib/systemd/system/a-b.service", tree.path("etc/systemd/system/c.service")).unwrap();
        assert_eq!(tree.load("c").name.as_str(), "a-b.service");
        assert_eq!(
            (tree.load("t@1").last("User"), tree.load("t@2").last("User")),
            (Some("one"), Some("all"))
        );
        assert_eq!(tree.load("t@1").name.as_str(), "t@1.service");
        let none = UnitName::parse("nothing").unwrap();
        assert!(Service::load(&Files::new(tree.0.path()), &none, None).unwrap().is_none());
    }

    #[test]
    fn commands_are_reset_by_an_empty_one() {
        let tree = Tree::new(&[
            (UNIT, "[Service]\nExecStart=/bin/a\nExecStart=/bin/b\n"),
            ("etc/systemd/system/a-b.service.d/x.conf", "[Service]\nExecStart=\nExecStart=/bin/c\n"),
        ]);
        let programs: Vec<String> =
            tree.load("a-b").commands().unwrap().into_iter().map(|it| it.program).collect();
        assert_eq!(programs, ["/bin/c"]);
        let tree = Tree::new(&[(UNIT, "[Service]\nType=oneshot\nExecStop=/bin/a\n")]);
        assert!(matches!(tree.load("a-b").commands(), Err(SystemdError::NoProgram { .. })));
    }
}
