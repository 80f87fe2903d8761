//! `megapage run --text`: programs whose segments are moved onto huge pages behave as before.

use crate::run_support;
use crate::text_support;

use megapage_kernel::thp_is_possible;
use megapage_testing::{PoolGuard, skip};
use megapage_units::PageSize;
use run_support::*;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use text_support::*;

#[test]
fn programs_of_every_layout_stay_whole() {
    let directory = on_disk();
    let layouts: [(&str, &[&str], u64); 9] = [
        // At least the whole blocks at any address: 4 MiB of code, 2 of constants, 2 of data, 4 of
        // .bss.
        ("pie", &[], 12),
        ("pie-two-segments", &["-Wl,-z,noseparate-code"], 14),
        ("fixed", &["-no-pie"], 12),
        ("aligned", &["-Wl,-z,max-page-size=0x200000"], 14),
        ("eager", &["-Wl,-z,now,-z,relro"], 12),
        ("gold", &["-fuse-ld=gold"], 12),
        ("lld", &["-fuse-ld=lld"], 12),
        ("lld-aligned", &["-fuse-ld=lld", "-Wl,-z,max-page-size=0x200000,-z,separate-loadable-segments"], 12),
        ("mold", &["-fuse-ld=mold"], 12),
    ];
    for (name, options, least) in layouts {
        let Some(path) = program(directory.path(), name, options) else { continue };
        let (report, output) = report("thp", &[], &[&path]);
        assert_eq!((status(&output), text(&output.stdout).as_str()), (3, "whole \n"), "{name}: {report:#}");
        let file = consistent(&report, "thp");
        assert!(value(&file, "possible_bytes") >= least * MIB, "{name}: {file:#}");
        assert_eq!(report["text"]["threads"], 1);
        // Nothing of the .bss is copied.
        if thp_is_possible() {
            assert!(value(&file, "advised_bytes") >= 4 * MIB, "{name}: {file:#}");
        }
    }
}

#[test]
fn what_programs_do_later_still_works() {
    let directory = on_disk();
    let library = answer(directory.path());
    let (Some(path), Some(library)) = (program(directory.path(), "later", &[]), library) else { return };
    for (task, argument) in
        [("fork", ""), ("exec", path.as_str()), ("dlopen", library.as_str()), ("heap", "")]
    {
        let (report, output) = report("thp", &[], &[&path, task, argument]);
        let said = if task == "exec" { "whole again\n".to_string() } else { format!("whole {task}\n") };
        assert_eq!((status(&output), text(&output.stdout)), (3, said), "{task}: {report:#}");
        // The other program may have ended before a sample.
        if task != "exec" {
            consistent(&report, "thp");
        }
    }
    let (_, output) = report("thp", &[], &[&path, "backtrace"]);
    let said = text(&output.stdout);
    assert!(status(&output) == 3 && said.contains("(traced+0x") && said.contains("(main+0x"), "{said}");
    let (_, output) = report("thp", &[], &[&path, "children"]);
    let said = text(&output.stdout);
    assert!(
        status(&output) == 3 && !said.contains("MEGAPAGE_TEXT=") && !said.contains("LD_PRELOAD"),
        "{said}"
    );
}

#[test]
fn it_goes_together_with_the_allocator() {
    let directory = on_disk();
    let Some(path) = program(directory.path(), "both", &[]) else { return };
    let mut command = run(&["--heap", "thp", "--text", "thp", "--", &path, "fork"]);
    let output = command.env("MEGAPAGE_TEXT_LIBRARY", text_library()).output().unwrap();
    assert_eq!((status(&output), text(&output.stdout).as_str()), (3, "whole fork\n"), "{output:?}");
}

#[test]
fn it_goes_together_with_jemalloc() {
    let Some(library) = jemalloc() else {
        return skip("needs libjemalloc.so.2: apt-get install libjemalloc2");
    };
    let directory = on_disk();
    let Some(path) = program(directory.path(), "jemalloc", &[]) else { return };
    for task in ["heap", "fork"] {
        let mut command = run(&["--heap", "none", "--text", "thp", "--", &path, task]);
        command.env("MEGAPAGE_TEXT_LIBRARY", text_library());
        command.env("LD_PRELOAD", &library).env("MALLOC_CONF", "stats_print:true");
        let output = command.output().unwrap();
        assert_eq!((status(&output), text(&output.stdout)), (3, format!("whole {task}\n")), "{output:?}");
        assert!(text(&output.stderr).contains("Begin jemalloc statistics"), "{output:?}");
    }
}

fn jemalloc() -> Option<PathBuf> {
    let directories = fs::read_dir("/usr/lib").ok()?.filter_map(Result::ok);
    directories.map(|directory| directory.path().join("libjemalloc.so.2")).find(|library| library.exists())
}

#[test]
fn hugetlb_pages_hold_what_is_never_written() {
    let Some(_pool) = PoolGuard::reserve(PageSize::HUGE_2M, 16) else { return };
    let directory = on_disk();
    let Some(path) = program(directory.path(), "hugetlb", &["-Wl,-z,max-page-size=0x200000"]) else { return };
    for task in ["", "fork", "heap"] {
        let (report, output) = report("2m", &[], &[&path, task]);
        assert_eq!((status(&output), text(&output.stdout)), (3, format!("whole {task}\n")), "{report:#}");
        let file = &report["text"]["files"][0];
        // The machine lock keeps the pages of the pool for this test.
        assert_eq!(file["mechanism"], "2m", "{file:#}");
        consistent(&report, "2m");
    }
}

/// Linker option by which the loader looks for libraries without a path in the program's directory.
const BESIDE: &str = "-Wl,-rpath,$ORIGIN";

#[test]
fn libraries_are_moved_as_well() {
    let directory = on_disk();
    // A library with the same code and data, without its main, and a program whose main calls it.
    let library = compile("gcc", directory.path(), "libbig.so", SOURCE, &["-shared", "-fPIC", "-Dmain=big"]);
    let source = "int big(int, char **); int main(int count, char **words) { return big(count, words); }";
    let beside = format!("-L{}", directory.path().display());
    let options = [&beside, "-Wl,--no-as-needed", "-l:libbig.so", BESIDE];
    let (Some(library), Some(path)) = (library, compile("gcc", directory.path(), "small", source, &options))
    else {
        return;
    };
    for libraries in ["libbig.so", library.as_str()] {
        let (report, output) = report("thp", &["--text-libs", libraries], &[&path, "fork"]);
        assert_eq!((status(&output), text(&output.stdout).as_str()), (3, "whole fork\n"), "{report:#}");
        let files = report["text"]["files"].as_array().unwrap();
        assert_eq!(files.len(), 2, "{report:#}");
        // The program itself holds no whole block, which is no failure if the library does.
        assert_eq!((&files[0]["mechanism"], &files[1]["mechanism"]), (&Value::Null, &"thp".into()));
        assert!(value(&files[1], "possible_bytes") >= 12 * MIB, "{report:#}");
        let missing = files[1]["missing"].as_str();
        assert!(missing.is_none_or(|why| why.contains("gave no huge pages")), "{report:#}");
    }
    // A library behind a versioned link: by its soname, by its file's name, and by the paths of
    // both.
    let options = ["-shared", "-fPIC", "-Dmain=big", "-Wl,-soname,libver.so.1"];
    let file = compile("gcc", directory.path(), "libver.so.1.2.3", SOURCE, &options).unwrap();
    let link = directory.path().join("libver.so.1");
    std::os::unix::fs::symlink("libver.so.1.2.3", &link).unwrap();
    let options = [&beside, "-Wl,--no-as-needed", "-l:libver.so.1", BESIDE];
    let path = compile("gcc", directory.path(), "versioned", source, &options).unwrap();
    for libraries in ["libver.so.1", "libver.so.1.2.3", &file, link.to_str().unwrap()] {
        let (report, output) = report("thp", &["--text-libs", libraries], &[&path, "fork"]);
        assert_eq!((status(&output), text(&output.stdout).as_str()), (3, "whole fork\n"), "{report:#}");
        let file = &report["text"]["files"][1];
        assert!(value(file, "possible_bytes") >= 12 * MIB, "{libraries}: {report:#}");
        let missing = file["missing"].as_str();
        assert!(missing.is_none_or(|why| why.contains("huge pages") || why.contains("by now")), "{report:#}");
    }
    let Some(path) = program(directory.path(), "opens", &[]) else { return };
    let later =
        ["--text", "thp", "--require", "--text-libs", library.as_str(), "--", &path, "dlopen", &library];
    assert_refused(&command(&later).output().unwrap(), 125, "only --text file reaches it");
}

#[test]
fn with_threads_about_data_stays_where_it_is() {
    let directory = on_disk();
    let source = "#include <pthread.h>\n#include <unistd.h>\n\
                  static void *wait(void *none) { for (;;) pause(); return none; }\n\
                  __attribute__((constructor)) static void start(void) {\n\
                  pthread_t thread; pthread_create(&thread, 0, wait, 0); }\n";
    let beside = format!("-L{}", directory.path().display());
    let options = [&beside, "-Wl,--no-as-needed", "-l:libthread.so", BESIDE];
    let built = compile("gcc", directory.path(), "libthread.so", source, &["-shared", "-fPIC", "-pthread"]);
    let (Some(_), Some(path)) = (built, program(directory.path(), "threaded", &options)) else { return };
    let (report, output) = report("thp", &[], &[&path]);
    assert_eq!((status(&output), text(&output.stdout).as_str()), (3, "whole \n"), "{report:#}");
    // Constructors of needed libraries run before a preloaded one's.
    if report["text"]["threads"] == 1 {
        return skip("this C library runs constructors of needed libraries after those of preloaded ones");
    }
    let file = &report["text"]["files"][0];
    assert!(file["missing"].is_string(), "{file:#}");
    // Code and constants moved, unless memory was short; the 4 MiB of data did not.
    assert!(value(file, "possible_bytes") - value(file, "obtained_bytes") >= 2 * MIB, "{file:#}");
}

/// Returns gdb's answer to these commands; `None`, after a loud skip, if it may not trace.
fn gdb(arguments: &[&str]) -> Option<String> {
    let output = Command::new("gdb").args(["-nx", "-batch"]).args(arguments).stdin(Stdio::null()).output();
    let Ok(output) = output else {
        skip("needs gdb");
        return None;
    };
    let said = text(&output.stdout) + &text(&output.stderr);
    if said.contains("Operation not permitted") {
        skip("needs the right to trace processes");
        return None;
    }
    Some(said)
}

#[test]
fn debuggers_see_what_they_saw() {
    let directory = on_disk();
    let Some(path) = program(directory.path(), "debugged", &[]) else { return };
    let launcher = start(command(&["--text", "thp", "--", &path, "loop"]));
    let pid = child_of(launcher.id()).to_string();
    let core = directory.path().join("core.gdb");
    let generate = format!("generate-core-file {}", core.display());
    let commands =
        ["-p", &pid, "-ex", "break later", "-ex", "continue", "-ex", "backtrace", "-ex", &generate];
    let said = gdb(&[&commands[..], &["-ex", "delete", "-ex", "detach"]].concat());
    let read = said.as_ref().and_then(|_| {
        gdb(&[
            &path,
            core.to_str().unwrap(),
            "-ex",
            "backtrace",
            "-ex",
            "x/2i middle",
            "-ex",
            "print data[1]",
        ])
    });
    let output = finish(launcher);
    // SIGUSR1, which the program's child sends at the end of the input.
    assert_eq!(status(&output), 1010, "{output:?}");
    let (Some(said), Some(read)) = (said, read) else { return skip("needs gdb") };
    assert!(said.contains("Breakpoint 1, ") && said.contains("in main ("), "{said}");
    assert!(read.contains("in later (") && read.contains("in main ("), "{read}");
    assert!(read.contains("lea    0x3(%rdi),%eax"), "{read}");
}

#[test]
fn core_dumps_of_the_kernel_are_read() {
    let directory = on_disk();
    let Some(path) = program(directory.path(), "dumped", &[]) else { return };
    let here = tempfile::tempdir_in(directory.path()).unwrap();
    // The shell sets the limit, and becomes the launcher.
    let mut shell = Command::new("sh");
    shell.args(["-c", "ulimit -c unlimited; exec \"$@\"", "sh", env!("CARGO_BIN_EXE_megapage"), "run"]);
    shell.args(["--heap", "none", "--text", "thp", "--", &path, "abort"]).current_dir(&here);
    let output = shell.env("MEGAPAGE_TEXT_LIBRARY", text_library()).stdin(Stdio::null()).output().unwrap();
    assert_eq!(status(&output), 1006, "{output:?}");
    let core = fs::read_dir(&here).unwrap().flatten().map(|entry| entry.path()).next();
    let Some(core) = core else { return skip("core_pattern sends core dumps elsewhere") };
    let Some(said) = gdb(&[&path, core.to_str().unwrap(), "-ex", "backtrace", "-ex", "x/2i middle"]) else {
        return;
    };
    // In the middle of the code: moved at any address of the program.
    assert!(said.contains("in main (") && said.contains("lea    0x3(%rdi),%eax"), "{said}");
}

#[test]
fn static_programs_are_reached_by_their_file_alone() {
    let directory = on_disk();
    let aligned = "-Wl,-z,max-page-size=0x200000";
    for (name, options) in [("static", &["-static", aligned][..]), ("static-pie", &["-static-pie", aligned])]
    {
        let source = "int main(void) { return 3; }\n__asm__(\".text\\n.skip 6 << 20, 0x90\\n\");\n";
        let Some(path) = compile("gcc", directory.path(), name, source, options) else { continue };
        let refused = command(&["--text", "thp", "--require", "--", &path]).output().unwrap();
        assert_refused(&refused, 125, "it is statically linked: no loader, nothing to preload");
        let (report, output) = report("file", &[], &[&path]);
        assert_eq!(status(&output), 3);
        let file = &report["text"]["files"][0];
        assert_eq!(file["mechanism"], "file");
        assert!(value(file, "possible_bytes") >= 4 * MIB, "{file:#}");
        let complete = value(file, "obtained_bytes") == value(file, "possible_bytes");
        assert_eq!(complete, file["missing"].is_null(), "{file:#}");
    }
}

#[test]
fn what_cannot_be_done_is_refused_or_told() {
    let directory = on_disk();
    let Some(asan) = program(directory.path(), "asan", &["-fsanitize=address"]) else { return };
    let refused = command(&["--text", "thp", "--require", "--", &asan]).output().unwrap();
    assert_refused(&refused, 125, "it was built with a sanitizer (asan)");
    // Without --require it runs as it is.
    let (report, output) = report("thp", &[], &[&asan]);
    assert_eq!(status(&output), 3, "{output:?}");
    assert!(report["not_obtained"][0].as_str().unwrap().contains("a sanitizer (asan)"), "{report:#}");

    let Some(path) = program(directory.path(), "plain", &[]) else { return };
    // PR_SET_MDWE (Linux 6.3) is inherited.
    let locked = "import ctypes, os, sys\n\
                  if ctypes.CDLL(None).prctl(65, 1, 0, 0, 0): sys.exit(77)\n\
                  os.execv(sys.argv[1], sys.argv[1:])";
    let mut python = Command::new("python3");
    python.args(["-c", locked, env!("CARGO_BIN_EXE_megapage"), "run", "--heap", "none", "--text", "thp"]);
    python.args(["--require", "--", &path]).env("MEGAPAGE_TEXT_LIBRARY", text_library());
    match python.output() {
        Ok(output) if status(&output) == 77 => eprintln!("this kernel has no PR_SET_MDWE"),
        Ok(output) => assert_refused(&output, 125, "memory that was written cannot be made executable here"),
        Err(_) => skip("needs python3"),
    }

    let small = compile("gcc", directory.path(), "small", "int main(void) { return 3; }", &[]).unwrap();
    let refused = command(&["--text", "auto", "--require", "--", &small]).output().unwrap();
    assert_refused(&refused, 125, "it holds no whole block of 2 MiB");
    let refused = command(&["--text", "thp", "--text-libs", "libnone.so", "--", &path]).output().unwrap();
    assert_refused(&refused, 125, "--text-libs: libnone.so: no such library");
    let refused = command(&["--text-libs", "libc.so.6", "--", &path]).output().unwrap();
    assert_refused(&refused, 125, "--text-libs goes with --text");
    let refused = command(&["--text", "4k", "--", &path]).output().unwrap();
    assert_refused(&refused, 125, "'4k' is none of auto, file, thp, 2m, 1g, none");
    // No segment is that long, whatever the pool holds.
    let refused = command(&["--text", "1g", "--require", "--", &path]).output().unwrap();
    assert_refused(&refused, 125, "--text 1g: no segment holds a whole GiB");
}

#[test]
fn a_dry_run_says_what_would_be_done() {
    let directory = on_disk();
    let Some(path) = program(directory.path(), "dry", &["-Wl,-z,max-page-size=0x200000"]) else { return };
    let said = text(&command(&["--text", "auto", "--dry-run", "--", &path]).output().unwrap().stdout);
    assert!(said.contains("\nmegapage remap prime "), "{said}");
    let said = text(&command(&["--text", "thp", "--dry-run", "--", &path]).output().unwrap().stdout);
    assert!(said.contains("LD_PRELOAD=") && said.contains("MEGAPAGE_TEXT=thp"), "{said}");
}

#[test]
fn runtimes_run_as_before() {
    let have = |program: &str| Command::new(program).arg("--version").output().is_ok();
    for kind in ["thp", "auto"] {
        if have("node") {
            let script = "let s = 0; for (let i = 0; i < 1e6; i++) s += i % 7; console.log(s)";
            let (report, output) = report(kind, &[], &["node", "-e", script]);
            assert_eq!((status(&output), text(&output.stdout).as_str()), (0, "2999997\n"), "{report:#}");
        } else {
            skip("needs node");
        }
        if have("/usr/bin/python3") {
            let (report, output) = report(kind, &[], &["/usr/bin/python3", "-c", "print(sum(range(10**6)))"]);
            assert_eq!(text(&output.stdout), "499999500000\n", "{report:#}");
        } else {
            skip("needs /usr/bin/python3");
        }
    }
    if have("java") {
        let (report, output) = report("auto", &[], &["java", "-version"]);
        assert!(status(&output) == 0 && text(&output.stderr).contains("Runtime"), "{output:?}");
        let files = report["text"]["files"].as_array().unwrap();
        let jvm = files.iter().find(|file| file["file"].as_str().unwrap().ends_with("libjvm.so"));
        assert!(jvm.is_some(), "{report:#}");
    } else {
        skip("needs java");
    }
}
