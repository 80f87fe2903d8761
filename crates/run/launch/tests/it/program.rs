//! Tests the facts found in real files: those of this machine, and those that the compiler makes
//! here.

use megapage_launch::program::{Allocator, InspectError, Linkage, Privilege, Program, Runtime};
use megapage_launch::versions;
use megapage_testing::{is_root, skip};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Compiles `source`. Returns `None`, after a loud skip, if there is no compiler.
fn compile(directory: &Path, name: &str, source: &str, arguments: &[&str]) -> Option<PathBuf> {
    compile_with("gcc", directory, name, source, arguments)
}

fn compile_with(
    compiler: &str,
    directory: &Path,
    name: &str,
    source: &str,
    arguments: &[&str],
) -> Option<PathBuf> {
    let (code, program) = (directory.join(format!("{name}.c")), directory.join(name));
    fs::write(&code, source).unwrap();
    match Command::new(compiler).args(arguments).arg(&code).arg("-o").arg(&program).status() {
        Ok(status) => assert!(status.success(), "{compiler} {arguments:?} failed"),
        Err(error) => {
            skip(&format!("needs {compiler}: {error}"));
            return None;
        }
    }
    Some(program)
}

fn executable(path: &Path, text: &str) {
    fs::write(path, text).unwrap();
    fs::set_permissions(path, PermissionsExt::from_mode(0o755)).unwrap();
}

const PLAIN: &str = "#include <stdlib.h>\nint main() { return malloc(1) == 0; }\n";
const FORKING: &str = "#include <unistd.h>\nint main() { return fork() < 0; }\n";

#[test]
fn linkage_is_told() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let Some(dynamic) = compile(at, "dynamic", PLAIN, &[]) else { return };
    let program = Program::inspect(&dynamic).unwrap();
    assert_eq!((program.linkage, program.heap_tunable, program.native), (Linkage::Glibc, true, true));
    assert!(program.libraries.iter().any(|path| path.ends_with("libc.so.6")), "{:?}", program.libraries);
    assert_eq!((program.forks, program.missing, program.allocator), (vec![], vec![], None));

    let Some(path) = compile(at, "static", PLAIN, &["-static"]) else { return };
    let program = Program::inspect(&path).unwrap();
    assert_eq!((program.linkage, program.position_independent), (Linkage::Static, false));
    assert!(program.heap_tunable, "glibc's tunables are in the file");

    let Some(path) = compile(at, "static-pie", PLAIN, &["-static-pie"]) else { return };
    let program = Program::inspect(&path).unwrap();
    assert_eq!((program.linkage, program.position_independent), (Linkage::Static, true));

    let Some(path) = compile_with("musl-gcc", at, "musl", PLAIN, &[]) else { return };
    let program = Program::inspect(&path).unwrap();
    assert_eq!((program.linkage, program.heap_tunable), (Linkage::Musl, false));
}

/// Makes a library of this name whose symbol `answer` has these versions.
fn versioned(directory: &Path, name: &str, versions: &[&str]) -> Option<PathBuf> {
    let script = directory.join("versions");
    let (last, first) = versions.split_last().unwrap();
    let mut text: String = first.iter().map(|version| format!("{version} {{ }};\n")).collect();
    text += &format!("{last} {{ global: answer; }};\n");
    fs::write(&script, text).unwrap();
    let (soname, script) =
        (format!("-Wl,-soname,{name}"), format!("-Wl,--version-script={}", script.display()));
    let arguments = ["-shared", "-fPIC", "-nostdlib", &soname, &script];
    compile(directory, name, "int answer(void) { return 42; }\n", &arguments)
}

#[test]
fn versions_are_those_of_the_c_library_that_the_loader_belongs_to() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let Some(dynamic) = compile(at, "dynamic", PLAIN, &[]) else { return };
    let offered = Program::inspect(&dynamic).unwrap().offered;
    assert!(offered["libc.so.6"].contains("GLIBC_2.17"), "{offered:?}");
    assert!(offered.contains_key("libgcc_s.so.1"), "{offered:?}");

    // The program names another loader in its directory: the C library is found beside that loader.
    let Some(_) = versioned(at, "libc.so.6", &["GLIBC_2.2.5", "GLIBC_2.12"]) else { return };
    fs::write(at.join("ld-linux-x86-64.so.2"), "").unwrap();
    let loader = format!("-Wl,--dynamic-linker={}", at.join("ld-linux-x86-64.so.2").display());
    let Some(old) = compile(at, "old", PLAIN, &[&loader]) else { return };
    let old = Program::inspect(&old).unwrap();
    assert_eq!(old.linkage, Linkage::Glibc);
    let user = at.join("user");
    fs::create_dir_all(&user).unwrap();
    for (version, expected) in [
        ("GLIBC_2.2.5", None),
        ("GLIBC_2.17", Some("its libc.so.6 goes up to GLIBC_2.12, and the library needs GLIBC_2.17")),
    ] {
        let Some(libc) = versioned(&user, "libc.so.6", &[version]) else { return };
        let source = "int answer(void); int ask(void) { return answer(); }\n";
        let arguments = ["-shared", "-fPIC", "-nostdlib", "-Wl,--no-as-needed", libc.to_str().unwrap()];
        let Some(library) = compile(at, "libuser.so", source, &arguments) else { return };
        let needed = versions::needed(&library).unwrap();
        assert_eq!(needed["libc.so.6"].iter().collect::<Vec<_>>(), [version]);
        assert_eq!(versions::lacking(&needed, &old.offered).as_deref(), expected);
    }
}

#[test]
fn forks_are_found_in_the_program_and_in_its_libraries() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let Some(forking) = compile(at, "forking", FORKING, &[]) else { return };
    let program = Program::inspect(&forking).unwrap();
    assert_eq!(program.forks.len(), 1, "{:?}", program.forks);
    assert_eq!((program.forks[0].symbol.as_str(), &program.forks[0].file), ("fork", &forking));

    let library = "#include <unistd.h>\nint forks(void) { return fork(); }\n";
    let Some(library) = compile(at, "libforks.so", library, &["-shared", "-fPIC"]) else { return };
    let run_path = format!("-L{}", at.display());
    let source = "int forks(void); int main() { return forks(); }\n";
    let arguments = [run_path.as_str(), "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed", "-lforks"];
    let Some(user) = compile(at, "user", source, &arguments) else { return };
    let program = Program::inspect(user).unwrap();
    assert!(program.forks.iter().any(|import| import.file == library), "{:?}", program.forks);

    let source = "#include <spawn.h>\nint main() { return posix_spawn(0, \"\", 0, 0, 0, 0); }\n";
    let Some(spawning) = compile(at, "spawning", source, &[]) else { return };
    assert_eq!(Program::inspect(spawning).unwrap().forks, [], "posix_spawn copies no memory");
}

#[test]
fn allocators_are_told() {
    let directory = tempfile::tempdir().unwrap();
    let at = directory.path();
    let own = "#include <stddef.h>\nstatic char b[9999]; static size_t n;\n\
        void *malloc(size_t s) { return b + (n += s + 16); }\nvoid free(void *p) { (void)p; }\n\
        #include <stdio.h>\nint main() { return puts(\"\") < 0; }\n";
    let Some(path) = compile(at, "own", own, &[]) else { return };
    assert_eq!(Program::inspect(path).unwrap().allocator, Some(Allocator::InExecutable));

    let library = "#include <stddef.h>\nvoid *mallocx(size_t s, int f) { return (void *)(s + f); }\n\
        void *malloc(size_t s) { return mallocx(s, 0); }\n";
    let arguments = ["-shared", "-fPIC", "-fno-builtin"];
    let Some(_) = compile(at, "libjemalloc-test.so", library, &arguments) else { return };
    let link = format!("-L{}", at.display());
    let arguments = [link.as_str(), "-Wl,-rpath,$ORIGIN", "-Wl,--no-as-needed", "-ljemalloc-test"];
    let Some(path) = compile(at, "linked", PLAIN, &arguments) else { return };
    let program = Program::inspect(path).unwrap();
    assert_eq!(program.allocator, Some(Allocator::Library("libjemalloc-test.so".into())));
    assert_eq!(program.private_allocation, None);

    let source = "#include <stddef.h>\nvoid *mallocx(size_t, int); int main() { return !mallocx(1, 0); }\n";
    let Some(path) = compile(at, "private", source, &arguments) else { return };
    let private = Program::inspect(path).unwrap().private_allocation.expect("mallocx is imported");
    assert_eq!(private.symbol, "mallocx");
}

#[test]
fn runtimes_are_told() {
    for (name, runtime) in [
        ("/usr/bin/java", Runtime::Jvm),
        ("node", Runtime::Node),
        ("/usr/bin/python3", Runtime::Python),
        ("php", Runtime::Php),
        ("go", Runtime::Go),
    ] {
        match Program::inspect(name) {
            Ok(program) => assert_eq!(program.runtime, Some(runtime), "{name}"),
            Err(error) => skip(&format!("needs {name}: {error}")),
        }
    }
}

#[test]
fn scripts_lead_to_their_interpreter() {
    let directory = tempfile::tempdir().unwrap();
    let script = directory.path().join("script");
    executable(&script, "#! /bin/sh -e\ntrue\n");
    let program = Program::inspect(&script).unwrap();
    assert_eq!(program.executable, Path::new("/bin/sh"));
    assert_eq!(program.script_arguments, ["-e".to_string(), script.display().to_string()]);
    assert_eq!(program.path, script);

    executable(&script, "#!/usr/bin/env sh\ntrue\n");
    let program = Program::inspect(&script).unwrap();
    assert!(program.executable.ends_with("sh"), "{:?}", program.executable);
    assert_eq!(program.script_arguments, [script.display().to_string()]);

    executable(&script, "true\n");
    assert_eq!(Program::inspect(&script).unwrap().executable, Path::new("/bin/sh"), "as execvp does");

    executable(&script, "#!/no/such/interpreter\n");
    let error = Program::inspect(&script).unwrap_err();
    assert!(matches!(error, InspectError::Interpreter { .. }), "{error}");
    assert_eq!(error.exit_status(), 126);

    executable(&script, &format!("#!{}\n", script.display()));
    assert!(Program::inspect(&script).unwrap_err().to_string().contains("more than 5 scripts"));
}

#[test]
fn what_cannot_run_is_named_with_the_shells_status() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("file");
    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    let status = |name: &Path| Program::inspect(name).unwrap_err().exit_status();
    assert_eq!(status(&file), 126);
    assert_eq!(status(directory.path()), 126);
    assert_eq!(status(&directory.path().join("none")), 127);
    assert_eq!(status(Path::new("no-such-program-anywhere")), 127);
    assert_eq!(status(Path::new("")), 127);
    executable(&file, "\u{7f}ELF\u{2}\u{1}\u{1} and no more");
    assert!(matches!(Program::inspect(&file), Err(InspectError::Malformed { .. })));
}

#[test]
fn raised_privilege_is_told() {
    if !is_root() {
        return skip("needs root to make a set-user-ID file of another user");
    }
    let directory = tempfile::tempdir().unwrap();
    let Some(path) = compile(directory.path(), "raised", PLAIN, &[]) else { return };
    std::os::unix::fs::chown(&path, Some(65534), Some(65534)).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o4755)).unwrap();
    assert_eq!(Program::inspect(&path).unwrap().privilege, Some(Privilege::SetUser(65534)));
    fs::set_permissions(&path, PermissionsExt::from_mode(0o2755)).unwrap();
    assert_eq!(Program::inspect(&path).unwrap().privilege, Some(Privilege::SetGroup(65534)));
    std::os::unix::fs::chown(&path, Some(0), Some(0)).unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o4755)).unwrap();
    assert_eq!(Program::inspect(&path).unwrap().privilege, None, "root gains nothing by root's bit");
}
