use super::*;
use rustix::fs::{CWD, mknodat};
use std::os::unix::fs::{PermissionsExt, symlink};

const PLAIN: Replace = Replace { mode: 0o644, durable: false };

fn tree() -> (tempfile::TempDir, PathBuf) {
    let tree = tempfile::tempdir().unwrap();
    let base = fs::canonicalize(tree.path()).unwrap();
    (tree, base)
}

fn fifo(path: &Path) {
    mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o666), 0).unwrap();
}

#[test]
fn what_another_user_puts_there_is_replaced_and_never_written_to() {
    let (_tree, base) = tree();
    let (victim, path) = (base.join("victim"), base.join("metrics.prom"));
    let draft = base.join(format!(".metrics.prom.{}.new", std::process::id()));
    let count = || fs::read_dir(&base).unwrap().count();
    fs::write(&victim, "precious").unwrap();
    for planted in [&path, &draft] {
        for durable in [false, true] {
            symlink(&victim, planted).unwrap();
            replace_file(&path, b"text", Replace { mode: 0o640, durable }).unwrap();
            assert_eq!(fs::read(&path).unwrap(), b"text");
            assert_eq!(fs::symlink_metadata(&path).unwrap().mode() & 0o170_777, 0o100_640);
            fs::remove_file(&path).unwrap();
            fifo(planted);
            replace_file(&path, b"text", PLAIN).unwrap();
            assert!(fs::symlink_metadata(&path).unwrap().is_file());
            assert_eq!(count(), 2, "no draft is left");
            remove_file(&path).unwrap();
        }
    }
    assert_eq!(fs::read(&victim).unwrap(), b"precious");
    assert_eq!(remove_file(&path).unwrap_err().kind(), ErrorKind::NotFound);
    try_replace_file(&path).unwrap();
    assert_eq!(count(), 1);
    // A failed replacement leaves no draft.
    fs::create_dir(&path).unwrap();
    assert!(replace_file(&path, b"text", PLAIN).is_err());
    assert_eq!(count(), 2);
}

#[test]
fn what_another_user_can_have_written_is_not_read() {
    let (_tree, base) = tree();
    let directory = open_own_directory(&base).unwrap();
    let why = |name: &str| directory.read_own_file(name, 4).unwrap_err().to_string();
    fs::write(base.join("own"), "text").unwrap();
    assert_eq!(directory.read_own_file("own", 4).unwrap(), b"text");
    fs::write(base.join("long"), "text.").unwrap();
    assert_eq!(directory.read_own_file("long", 4).unwrap_err().kind(), ErrorKind::FileTooLarge);
    symlink("own", base.join("link")).unwrap();
    assert_eq!(why("link"), "it is a symbolic link");
    fifo(&base.join("fifo"));
    assert_eq!(why("fifo"), "not a regular file");
    fs::set_permissions(base.join("own"), fs::Permissions::from_mode(0o620)).unwrap();
    assert_eq!(why("own"), "it may be written to by others");
    assert_eq!(directory.read_own_file("none", 4).unwrap_err().kind(), ErrorKind::NotFound);
    fs::create_dir(base.join("open")).unwrap();
    fs::set_permissions(base.join("open"), fs::Permissions::from_mode(0o777)).unwrap();
    let refused = open_own_directory(&base.join("open")).unwrap_err().to_string();
    assert_eq!(refused, "the directory may be written to by others");
    if effective_uid() != 0 {
        return megapage_testing::skip("needs root, to give a file to another user");
    }
    fs::set_permissions(base.join("own"), fs::Permissions::from_mode(0o600)).unwrap();
    std::os::unix::fs::chown(base.join("own"), Some(12345), None).unwrap();
    assert_eq!(why("own"), "it belongs to user 12345");
    std::os::unix::fs::chown(base.join("open"), Some(12345), None).unwrap();
    let refused = open_own_directory(&base.join("open")).unwrap_err().to_string();
    assert_eq!(refused, "the directory belongs to user 12345");
}

#[test]
fn links_of_others_are_not_followed() {
    let (_tree, base) = tree();
    fs::create_dir_all(base.join("open/real")).unwrap();
    fs::create_dir(base.join("links")).unwrap();
    symlink("../open/./real", base.join("links/own")).unwrap();
    symlink(base.join("links/own/.."), base.join("links/twice")).unwrap();
    symlink("self", base.join("links/self")).unwrap();
    let text = |path: &str| fs::read(base.join(path)).unwrap();
    replace_file(&base.join("links/own/a"), b"1", PLAIN).unwrap();
    replace_file(&base.join("links/twice/b"), b"2", PLAIN).unwrap();
    assert_eq!((text("open/real/a"), text("open/b")), (b"1".to_vec(), b"2".to_vec()));
    assert!(replace_file(&base.join("links/self/a"), b"x", PLAIN).is_err());
    // Others may put a link there.
    fs::set_permissions(base.join("links"), fs::Permissions::from_mode(0o777)).unwrap();
    let through = base.join("links/own/a");
    for result in [replace_file(&through, b"x", PLAIN), try_replace_file(&through), remove_file(&through)] {
        let what = result.unwrap_err().to_string();
        assert!(what.contains("links/own is a symbolic link that others could have put there"), "{what}");
    }
    fs::set_permissions(base.join("links"), fs::Permissions::from_mode(0o1777)).unwrap();
    replace_file(&through, b"3", PLAIN).unwrap();
    if effective_uid() == 0 {
        std::os::unix::fs::lchown(base.join("links/own"), Some(4711), None).unwrap();
        assert!(replace_file(&through, b"x", PLAIN).is_err(), "in a sticky directory, and another user's");
    }
    assert_eq!(text("open/real/a"), b"3");
    for wrong in ["relative", "/", ""] {
        assert!(replace_file(Path::new(wrong), b"x", PLAIN).is_err(), "{wrong}");
    }
}

#[test]
fn a_report_is_not_written_through_a_link_of_another_user() {
    let (_tree, base) = tree();
    let (victim, link) = (base.join("victim"), base.join("link"));
    fs::write(&victim, "precious").unwrap();
    symlink(&victim, &link).unwrap();
    write_report(&link, b"own").unwrap();
    assert_eq!(fs::read(&victim).unwrap(), b"own");
    write_report(&base.join("new"), b"new").unwrap();
    write_report(Path::new("/dev/null"), b"x").unwrap();
    if effective_uid() == 0 {
        std::os::unix::fs::lchown(&link, Some(4711), None).unwrap();
        let what = write_report(&link, b"x").unwrap_err().to_string();
        assert!(what.contains("it is a symbolic link of user 4711"), "{what}");
        assert_eq!(fs::read(&victim).unwrap(), b"own");
    }
}

#[test]
fn what_is_no_regular_file_is_refused_and_never_opened() {
    use rustix::fs::inotify::{CreateFlags, ReadFlags, Reader, WatchFlags, add_watch, init};
    let (_tree, base) = tree();
    let pipe = base.join("pipe");
    fifo(&pipe);
    symlink("pipe", base.join("link")).unwrap();
    let opened = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).unwrap();
    add_watch(&opened, &pipe, WatchFlags::OPEN).unwrap();
    let mut buffer = [std::mem::MaybeUninit::uninit(); 1024];
    let mut events = Reader::new(&opened, &mut buffer);
    let directory = Directory::open(&base).unwrap();
    let most = 8;
    for (what, error) in [
        ("open_regular", open_regular(&pipe).unwrap_err()),
        ("by a link", open_regular(&base.join("link")).unwrap_err()),
        ("open_regular_no_link", open_regular_no_link(&pipe).unwrap_err()),
        ("read_given", read_given(&pipe, most).unwrap_err()),
        ("open_file", directory.open_file("pipe").unwrap_err()),
        ("open_file_to_read", directory.open_file_to_read("pipe").unwrap_err()),
        ("append_report", append_report(&pipe).unwrap_err()),
    ] {
        assert_eq!(error.to_string(), "not a regular file", "{what}");
        assert_eq!(events.next().map(|event| event.events()).unwrap_err(), Errno::AGAIN, "{what}");
    }
    assert!(is_link_in_the_way(&open_regular_no_link(&base.join("link")).unwrap_err()));
    assert!(is_link_in_the_way(&directory.open_file("link").unwrap_err()));
    // An open would be seen.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC;
    drop(rustix::fs::open(&pipe, flags, Mode::empty()).unwrap());
    assert_eq!(events.next().unwrap().events(), ReadFlags::OPEN);
}

#[test]
fn what_takes_a_files_name_meanwhile_is_not_opened() {
    let (_tree, base) = tree();
    let (path, pipe) = (base.join("file"), base.join("pipe"));
    fs::write(&path, "found").unwrap();
    fifo(&pipe);
    let swapped = |flags: OFlags| {
        let opened = rustix::fs::open(&path, flags, Mode::empty());
        fs::rename(&pipe, &path).unwrap();
        opened
    };
    let file = open_looked_at(OFlags::RDONLY, swapped).unwrap();
    assert_eq!(read_bounded(file, 8).unwrap(), b"found");
    assert!(!fs::symlink_metadata(&path).unwrap().is_file());
}

#[test]
fn what_the_caller_has_open_is_read() {
    let (reader, mut writer) = io::pipe().unwrap();
    writer.write_all(b"from a pipe").unwrap();
    drop(writer);
    for directory in ["/dev/fd", "/proc/self/fd"] {
        let (reader, mut writer) = io::pipe().unwrap();
        writer.write_all(b"from a pipe").unwrap();
        drop(writer);
        let path = format!("{directory}/{}", reader.as_raw_fd());
        assert_eq!(read_given(Path::new(&path), 99).unwrap(), b"from a pipe");
    }
    let path = format!("/dev/fd/{}", reader.as_raw_fd());
    assert_eq!(read_given(Path::new(&path), 10).unwrap_err().kind(), ErrorKind::FileTooLarge);
}

#[test]
fn a_program_of_holes_is_refused() {
    use std::os::unix::fs::FileExt;
    let (_tree, base) = tree();
    let path = base.join("program");
    let file = File::create(&path).unwrap();
    file.write_all_at(b"\x7fELF", 0).unwrap();
    file.set_len(LONGEST_HOLLOW).unwrap();
    let mut start = [0; 4];
    open_binary(&path).unwrap().read_exact(&mut start).unwrap();
    assert_eq!(&start, b"\x7fELF");
    file.set_len(1 << 42).unwrap();
    assert!(open_binary(&path).is_ok(), "the caller's own");
    if effective_uid() != 0 {
        return megapage_testing::skip("needs root, to give a file to another user");
    }
    std::os::unix::fs::fchown(&file, Some(65534), None).unwrap();
    assert_eq!(open_binary(&path).unwrap_err().to_string(), "more than half of it is holes");
}

#[test]
fn a_report_is_not_written_to_a_fifo_of_another_user() {
    let (_tree, base) = tree();
    let pipe = base.join("pipe");
    fifo(&pipe);
    if effective_uid() != 0 {
        return megapage_testing::skip("needs root, to give a file to another user");
    }
    std::os::unix::fs::lchown(&pipe, Some(4711), None).unwrap();
    for error in [create_report(&pipe).unwrap_err(), open_report(&pipe).unwrap_err()] {
        let what = error.to_string();
        assert!(what.contains("it is a FIFO of user 4711"), "{what}");
    }
    // The caller's own FIFO is waited for.
    std::os::unix::fs::lchown(&pipe, Some(0), None).unwrap();
    let reader = std::thread::spawn({
        let pipe = pipe.clone();
        move || fs::read(pipe).unwrap()
    });
    write_report(&pipe, b"report").unwrap();
    assert_eq!(reader.join().unwrap(), b"report");
}

#[test]
fn reading_is_bounded_and_does_not_wait_for_a_fifo() {
    let (_tree, base) = tree();
    let (path, pipe) = (base.join("file"), base.join("pipe"));
    fs::write(&path, "12345678").unwrap();
    fifo(&pipe);
    assert_eq!(read_regular(&path, 8).unwrap(), b"12345678");
    assert_eq!(read_regular(&path, 7).unwrap_err().kind(), ErrorKind::FileTooLarge);
    assert_eq!(read_regular(&pipe, 8).unwrap_err().to_string(), "not a regular file");
    assert!(read_regular(&base, 8).is_err());
    symlink("file", base.join("link")).unwrap();
    assert_eq!(read_regular(&base.join("link"), 8).unwrap(), b"12345678");
}

#[test]
fn a_directory_that_others_control_is_refused() {
    let (_tree, base) = tree();
    trusted_directory(&base.join("s")).unwrap();
    trusted_directory(&base.join("missing/s")).unwrap();
    fs::create_dir(base.join("open")).unwrap();
    fs::set_permissions(base.join("open"), fs::Permissions::from_mode(0o1777)).unwrap();
    symlink(&base, base.join("link")).unwrap();
    fs::create_dir_all(base.join("wide/inner")).unwrap();
    fs::set_permissions(base.join("wide"), fs::Permissions::from_mode(0o777)).unwrap();
    fs::create_dir(base.join("open/inner")).unwrap();
    trusted_directory(&base.join("open/inner/s")).unwrap();
    for (path, what) in [
        ("open/s", "written to by others"),
        ("link/s", "symbolic link"),
        ("wide/inner/s", "above it, may be written to"),
        ("wide/inner/missing/s", "above it, may be written to"),
    ] {
        let error = trusted_directory(&base.join(path)).unwrap_err();
        assert!(error.to_string().contains(what), "{error}");
    }
    assert!(trusted_directory(Path::new("/")).is_err());
}
