//! What each linker lays out, and laying it out anew.

mod programs;

use megapage_kernel::KernelRoot;
use megapage_remap::align::align;
use megapage_remap::check::check;
use megapage_remap::layout::linker_flags;
use megapage_remap::{Placement, read_binary};
use programs::{build, on_disk, output};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

const MIB: u64 = 1 << 20;
const PIE: &[&str] = &["-fPIE", "-pie"];
const FIXED: &[&str] = &["-no-pie"];

/// Aligns `built` and looks at all that can be looked at without running it on huge pages; the bytes for huge pages
/// before and after.
fn aligned(directory: &Path, built: &Path) -> (u64, u64) {
    let name = built.file_name().unwrap().to_str().unwrap();
    let out = directory.join(format!("{}.out", name));
    let outcome = align(built, &out, false).unwrap_or_else(|error| panic!("{error}"));
    assert!(outcome.after_bytes >= outcome.before_bytes);
    assert_eq!(output(&out), output(built), "{name}");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode();
    assert_eq!(mode(&out), mode(built));
    // Addresses and rights are as before, segment by segment.
    let (before, after) = (read_binary(built).unwrap(), read_binary(&out).unwrap());
    for (old, new) in before.segments.iter().zip(&after.segments) {
        assert_eq!((old.address, old.write, old.execute), (new.address, new.write, new.execute));
        assert!(new.align <= 1 || new.address % new.align == new.offset % new.align, "{new:?}");
    }
    assert_eq!(before.relro, after.relro);
    // The lines of a dry run make the same file.
    let dry = directory.join(format!("{} dry", name));
    let lines = align(built, &dry, true).unwrap().commands;
    assert!(!dry.exists());
    let shell = Command::new("sh").arg("-ec").arg(lines.join("\n")).output().unwrap();
    assert!(shell.status.success(), "{}", String::from_utf8_lossy(&shell.stderr));
    assert!(fs::read(&dry).unwrap() == fs::read(&out).unwrap(), "{}: the dry run differs", name);
    assert_eq!(mode(&dry), mode(&out));
    // Doing it again changes nothing.
    let again = directory.join(format!("{}.again", name));
    assert!(align(&out, &again, false).unwrap().is_copy());
    assert!(fs::read(&again).unwrap() == fs::read(&out).unwrap());
    for file in [out, dry, again] {
        fs::remove_file(file).unwrap();
    }
    (outcome.before_bytes, outcome.after_bytes)
}

/// As the linker packs it, and with the options that `check` names for it.
fn linker(name: &str, known_as: Option<&str>) {
    let directory = on_disk();
    for (placement, kind) in [(Placement::Independent, PIE), (Placement::Fixed, FIXED)] {
        let fuse = format!("-fuse-ld={name}");
        let options = [kind, &[fuse.as_str()]].concat();
        let Some(plain) = build(directory.path(), "plain", &options) else { return };
        let found = check(&KernelRoot::live(), &plain).unwrap();
        assert_eq!((found.placement, found.linker.as_deref()), (placement, known_as), "{name}");
        let (before, after) = aligned(directory.path(), &plain);
        assert_eq!((before, Some(after)), (found.prime_bytes, found.align_bytes), "{name}");
        // 6 MiB of code and 5 of constants, wherever they start.
        assert!((6 * MIB..=12 * MIB).contains(&after), "{name}: {after}");
        if placement == Placement::Independent {
            assert_eq!(before, 0, "{name} promises no place");
        }

        let flags = linker_flags(found.linker.as_deref());
        assert_eq!(found.flags, flags);
        let options = [&options[..], &[flags.flags]].concat();
        let tuned = build(directory.path(), "tuned", &options).unwrap();
        let found = check(&KernelRoot::live(), &tuned).unwrap();
        assert!(found.placed_at_huge);
        assert!(found.segments.iter().all(|part| part.congruent), "{name}: {found:?}");
        assert!(found.prime_bytes >= 10 * MIB, "{name}: {found:?}");
        aligned(directory.path(), &tuned);
        fs::remove_file(&plain).unwrap();
        fs::remove_file(&tuned).unwrap();
    }
}

#[test]
fn gnu_ld() {
    linker("bfd", None);
}

#[test]
fn gold() {
    linker("gold", Some("gold"));
}

#[test]
fn lld() {
    linker("lld", Some("lld"));
}

#[test]
fn mold() {
    linker("mold", Some("mold"));
}

#[test]
fn static_programs_and_stripped_ones() {
    let directory = on_disk();
    for (name, options) in [
        ("static", &["-static"][..]),
        ("static-pie", &["-static-pie", "-fPIE"]),
        ("stripped", &["-fPIE", "-pie", "-s", "-fuse-ld=lld"]),
    ] {
        let Some(built) = build(directory.path(), name, options) else { continue };
        let (_, after) = aligned(directory.path(), &built);
        assert!(after >= 6 * MIB, "{name}: {after}");
    }
}

#[test]
fn a_library_is_laid_out_and_still_loads() {
    let directory = on_disk();
    let path = directory.path();
    let Some(library) = build(
        path,
        "libwhole.so",
        &["-shared", "-fPIC", "-DLIBRARY", "-fuse-ld=lld", "-Wl,-soname,libwhole.so"],
    ) else {
        return;
    };
    assert_eq!(read_binary(&library).unwrap().placement, Placement::Library);
    let user = path.join("user");
    let source = path.join("user.c");
    fs::write(&source, "int entry(int, char **); int main(int c, char **v) { return entry(c, v); }").unwrap();
    let mut link = Command::new("gcc");
    link.args([&source, &library]).arg("-o").arg(&user).arg("-Wl,-rpath,$ORIGIN");
    let linked = link.output().unwrap();
    assert!(linked.status.success(), "{}", String::from_utf8_lossy(&linked.stderr));
    let before = output(&user);
    let moved = path.join("moved.so");
    let outcome = align(&library, &moved, false).unwrap();
    assert!(outcome.moved_segments > 0 && outcome.after_bytes >= 6 * MIB);
    fs::rename(&moved, &library).unwrap();
    assert_eq!(output(&user), before);
}

#[test]
fn what_cannot_be_laid_out_is_refused_and_nothing_is_left_behind() {
    let directory = on_disk();
    let path = directory.path();
    let refused = |file: &Path, out: &Path, what: &str| {
        let error = align(file, out, false).unwrap_err().to_string();
        assert!(error.contains(what) && !error.contains('\n'), "{error}");
    };
    let Some(packed) = build(path, "packed", &["-fPIE", "-pie", "-fuse-ld=lld"]) else { return };
    let out = path.join("out");
    // An archive at its end, found by its offset, would be lost.
    let mut archive = fs::read(&packed).unwrap();
    let end = archive.len();
    archive.extend(b"payload");
    let carrier = path.join("carrier");
    fs::write(&carrier, &archive).unwrap();
    refused(&carrier, &out, &format!("holds bytes that no header describes (from offset {end})"));
    refused(&packed, &packed, "write to another file, then rename");
    refused(&packed, &path.join("none/out"), "No such file");
    refused(&packed, path, "is a directory");
    refused(Path::new("/bin/ls"), &out, "smaller than 2 MiB: nothing to gain");
    refused(Path::new("/nothing/there"), &out, "No such file");
    let text = path.join("text");
    fs::write(&text, "#!/bin/sh\n").unwrap();
    refused(&text, &out, "not an ELF executable or library");
    let left: Vec<_> = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left.len(), 4, "{left:?}");

    // Where nothing needs to move, what follows the last header stays where it is.
    let Some(built) = build(path, "kept", &["-fPIE", "-pie", "-fuse-ld=bfd"]) else { return };
    let mut archive = fs::read(&built).unwrap();
    let end = archive.len();
    archive.extend(b"payload");
    fs::write(&carrier, &archive).unwrap();
    let outcome = align(&carrier, &out, false).unwrap();
    assert!(outcome.moved_segments == 0 && outcome.after_bytes > outcome.before_bytes);
    assert_eq!(&fs::read(&out).unwrap()[end..], b"payload");
}

#[test]
fn a_debugger_still_finds_lines() {
    if Command::new("gdb").arg("--version").output().is_err() {
        return megapage_testing::skip("needs gdb");
    }
    let directory = on_disk();
    let Some(built) = build(directory.path(), "debugged", &["-g", "-fPIE", "-pie", "-fuse-ld=lld"]) else {
        return;
    };
    let out = directory.path().join("out");
    assert!(align(&built, &out, false).unwrap().moved_segments > 0);
    // Once it has been started, it can be started by a debugger, too (see `patiently`).
    assert_eq!(output(&out), output(&built));
    let gdb = Command::new("gdb")
        .args([
            "-q",
            "-batch",
            "-nx",
            "-ex",
            "break entry",
            "-ex",
            "run",
            "-ex",
            "backtrace",
            "-ex",
            "finish",
        ])
        .env("DEBUGINFOD_URLS", "")
        .arg(&out)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&gdb.stdout);
    assert!(said.contains("Breakpoint 1, entry (count=1") && said.contains("debugged.c:"), "{said}");
    assert!(said.contains("Value returned is $1 = 3"), "{said}");
}
