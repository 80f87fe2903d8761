//! `megapage run --text` on real programs, and on each kind of executable. A debugger, a core dump,
//! a fork, an exec, a library that is opened later and a filter of system calls find the same as
//! before.

use crate::run_support;
use crate::text_support;

use megapage_kernel::KernelRoot;
use megapage_kernel::process::read_exe;
use megapage_testing::{is_root, skip};
use megapage_units::Pid;
use run_support::*;
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use text_support::*;

/// The test of one program. It says "ready" on its standard output, or in the file that `ready`
/// names, and calls `function` again and again. At the end of its input it prints `says` and ends
/// with `status`.
struct Case {
    name: &'static str,
    kind: &'static str,
    options: Vec<String>,
    words: Vec<String>,
    ready: Option<PathBuf>,
    function: &'static str,
    /// Code that is moved at any address of the program, and its form in a debugger.
    code: (&'static str, &'static str),
    /// First text for its input.
    opening: String,
    /// Text for its input while the debugger waits, for a program that does nothing by itself.
    poke: &'static str,
    says: String,
    status: i32,
}

impl Case {
    fn words(&self) -> Vec<&str> {
        self.words.iter().map(String::as_str).collect()
    }
}

/// Returns the launcher, and the program that it has started, which is ready.
fn launch(case: &Case, report: &Path) -> (Child, u32) {
    let mut options = vec!["--text", case.kind, "--json", "--report", report.to_str().unwrap()];
    options.extend(case.options.iter().map(String::as_str));
    options.push("--");
    let mut command = command(&[&options[..], &case.words()].concat());
    let launcher = match &case.ready {
        None => start(command),
        Some(file) => {
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
            let mut launcher = command.spawn().unwrap();
            launcher.stdin.as_mut().unwrap().write_all(case.opening.as_bytes()).unwrap();
            wait_for(case.name, || {
                assert!(launcher.try_wait().unwrap().is_none(), "{} has ended", case.name);
                file.exists()
            });
            launcher
        }
    };
    let pid = child_of(launcher.id());
    (launcher, pid)
}

/// Runs gdb to its end, and pokes the program meanwhile. Returns `None`, after a loud skip, if gdb
/// may not trace.
fn gdb(arguments: &[&str], mut poked: Option<(&mut Child, &str)>) -> Option<String> {
    let mut command = Command::new("timeout");
    command.args(["900", "gdb", "-nx", "-batch", "-iex", "set debuginfod enabled off"]);
    // The JVM raises these signals itself.
    command.args(["-ex", "handle SIGSEGV SIGUSR1 nostop noprint pass"]).args(arguments);
    let mut output = tempfile::tempfile().unwrap();
    let both = (output.try_clone().unwrap(), output.try_clone().unwrap());
    let started = command.stdin(Stdio::null()).stdout(both.0).stderr(both.1).spawn();
    let Ok(mut gdb) = started else {
        skip("needs gdb");
        return None;
    };
    // Pokes often enough for the limit above, but with no more text than a pipe holds while the
    // program is stopped.
    for number in 0.. {
        if gdb.try_wait().unwrap().is_some() {
            break;
        }
        if let Some((launcher, words)) = poked.as_mut().filter(|_| number % 60 == 0) {
            // If the program has ended, its output shows that.
            let _ = launcher.stdin.as_mut().unwrap().write_all(words.as_bytes());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_ne!(gdb.wait().unwrap().code(), Some(124), "gdb has not ended within 15 minutes");
    use std::io::{Read, Seek};
    let mut said = Vec::new();
    output.rewind().unwrap();
    output.read_to_end(&mut said).unwrap();
    let said = text(&said);
    if said.contains("Operation not permitted") {
        skip("needs the right to trace processes");
        return None;
    }
    Some(said)
}

/// Attaches a debugger with a breakpoint, writes a core dump by it, reads that, and lets the
/// program end.
fn debug(case: &Case, directory: &Path) -> Option<Value> {
    let report = directory.join("report.json");
    let (mut launcher, pid) = launch(case, &report);
    let executable = read_exe(&KernelRoot::live(), Pid(pid as i32)).unwrap();
    let (pid, core) = (pid.to_string(), directory.join("core"));
    let (stop, generate) =
        (format!("break {}", case.function), format!("generate-core-file {}", core.display()));
    let commands = ["-p", &pid, "-ex", &stop, "-ex", "continue", "-ex", "backtrace 8", "-ex", &generate];
    let commands = [&commands[..], &["-ex", "delete", "-ex", "detach"]].concat();
    let said = gdb(&commands, Some((&mut launcher, case.poke)));
    let code = format!("x/2i {}", case.code.0);
    let read = said.as_ref().and_then(|_| {
        let arguments =
            [executable.to_str().unwrap(), core.to_str().unwrap(), "-ex", "backtrace 8", "-ex", &code];
        gdb(&arguments, None)
    });
    let output = finish(launcher);
    let printed = text(&output.stdout);
    assert_eq!(
        (status(&output), printed.as_str()),
        (case.status, case.says.as_str()),
        "{}: {output:?}",
        case.name
    );
    let (said, read) = (said?, read?);
    assert!(said.contains("Breakpoint 1, ") && said.contains(case.function), "{}: {said}", case.name);
    let frame = |text: &str| text.lines().any(|line| line.starts_with('#') && line.contains(case.function));
    assert!(frame(&read), "{}: the core dump's frames: {read}", case.name);
    let shown = |line: &str| line.contains(case.code.1) && !line.contains("Cannot access");
    assert!(read.lines().any(shown), "{}: the core dump's code: {read}", case.name);
    fs::remove_file(core).unwrap();
    Some(serde_json::from_str(&fs::read_to_string(&report).unwrap()).unwrap())
}

/// A program that puts itself into a sandbox, as its first argument says, and executes the rest.
/// Its status is 77 if the kernel lacks the sandbox.
const SANDBOX: &str = r#"
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>
int main(int count, char **words) {
    if (!strcmp(words[1], "mdwe")) {
        if (prctl(65, 1, 0, 0, 0)) return 77;
    } else {
        int mremap = !strcmp(words[1], "mremap");
        struct sock_filter refuse[] = {
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
            BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, mremap ? SYS_mremap : SYS_mprotect, 0, 3),
            BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[2])),
            BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, mremap ? ~0u : 4 /* PROT_EXEC */, 0, 1),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | EPERM),
            BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        };
        struct sock_fprog program = {sizeof refuse / sizeof *refuse, refuse};
        if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)) return 77;
        if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program)) return 77;
    }
    execv(words[2], words + 2);
    return 76;
}
"#;

/// Runs in a sandbox that forbids what moving needs. The run is refused with `--require`; otherwise
/// the report says so, and the program runs on if the sandbox allows it.
fn shut_in(case: &Case, sandbox: &str, directory: &Path) {
    let report = directory.join("shut-in.json");
    for (mode, why, runs) in [
        ("mremap", "mappings cannot be made and moved here", true),
        ("mprotect", "memory that was written cannot be made executable here", false),
        ("mdwe", "memory that was written cannot be made executable here", false),
    ] {
        let inside = |arguments: &[&str]| {
            let command = command(arguments);
            let mut outer = Command::new(sandbox);
            outer.arg(mode).arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
            outer.env("MEGAPAGE_TEXT_LIBRARY", text_library()).output().unwrap()
        };
        let words = case.words();
        let required = inside(&[&["--text", "thp", "--require", "--"], &words[..]].concat());
        if status(&required) == 77 {
            skip(&format!("needs a kernel with the sandbox {mode}"));
            continue;
        }
        assert_refused(&required, 125, why);
        // A just-in-time compiler needs what the other two forbid.
        if runs {
            let options = ["--text", "thp", "--json", "--report", report.to_str().unwrap(), "--"];
            let output = inside(&[&options, &words[..]].concat());
            assert_eq!(status(&output), case.status, "{}: {output:?}", case.name);
            let report: Value = serde_json::from_str(&fs::read_to_string(&report).unwrap()).unwrap();
            let said = report["not_obtained"][0].as_str().unwrap_or_default();
            assert!(said.contains(why), "{}: {report:#}", case.name);
        }
    }
}

fn sandbox(directory: &Path) -> Option<String> {
    compile("gcc", directory, "sandbox", SANDBOX, &[])
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| word.to_string()).collect()
}

fn have(program: &str) -> bool {
    let there = Command::new(program).arg("--version").output().is_ok_and(|output| output.status.success());
    if !there {
        skip(&format!("needs {program}"));
    }
    there
}

#[test]
fn executables_of_every_kind() {
    let directory = on_disk();
    let Some(sandbox) = sandbox(directory.path()) else { return };
    let aligned = "-Wl,-z,max-page-size=0x200000";
    let Some(library) = answer(directory.path()) else { return };
    for (name, kind, options) in [
        ("static-fixed", "file", &["-static", "-no-pie", aligned][..]),
        ("static-pie", "file", &["-static-pie", aligned]),
        ("pie-2-segments", "thp", &["-Wl,-z,noseparate-code"]),
        ("pie-4-segments", "thp", &["-Wl,-z,separate-code"]),
    ] {
        let Some(path) = program(directory.path(), name, options) else { return };
        let headers = Command::new("readelf").args(["-lW", &path]).output().unwrap();
        let loads = text(&headers.stdout).lines().filter(|line| line.trim().starts_with("LOAD")).count();
        assert!(kind == "file" || name.contains(&loads.to_string()), "{name} has {loads}");
        let mut case = Case {
            name,
            kind,
            options: Vec::new(),
            words: strings(&[&path, "loop"]),
            ready: None,
            function: "later",
            code: ("middle", "lea    0x3(%rdi),%eax"),
            opening: String::new(),
            poke: "",
            says: String::new(),
            // SIGUSR1, which the program's child sends at the end of the input.
            status: 1010,
        };
        debug(&case, directory.path());
        let tasks = [("fork", ""), ("exec", path.as_str()), ("dlopen", library.as_str())];
        // A static program that opens a library needs exactly the glibc that it was linked with.
        let count = if kind == "file" { 2 } else { 3 };
        for (task, argument) in &tasks[..count] {
            let (report, output) = report(kind, &[], &[&path, task, argument]);
            let said = if *task == "exec" { "whole again\n".to_string() } else { format!("whole {task}\n") };
            assert_eq!((status(&output), text(&output.stdout)), (3, said), "{name} {task}: {report:#}");
        }
        if kind == "thp" {
            (case.words, case.status) = (strings(&[&path]), 3);
            shut_in(&case, &sandbox, directory.path());
        } else {
            // Nothing is moved, so that nothing is refused.
            for mode in ["mremap", "mprotect", "mdwe"] {
                let command = command(&["--text", "file", "--", &path, "fork"]);
                let mut outer = Command::new(&sandbox);
                outer.arg(mode).arg(command.get_program()).args(command.get_args()).stdin(Stdio::null());
                let output = outer.output().unwrap();
                assert!(matches!(status(&output), 3 | 77), "{name} {mode}: {output:?}");
            }
        }
    }
}

#[test]
fn python() {
    if !have("/usr/bin/python3") {
        return;
    }
    let directory = on_disk();
    let script = "import os, select, sys, time\n\
        print('ready', flush=True)\n\
        while not select.select([sys.stdin], [], [], 0.001)[0]: int('12')\n\
        child = os.fork()\n\
        if child == 0: os._exit(sum(range(10)))\n\
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])\n\
        import ctypes, subprocess\n\
        again = subprocess.run([sys.executable, '-c', 'print(41 + 1)'], capture_output=True, text=True).stdout\n\
        print(status, again.strip(), ctypes.CDLL(None).abs(-7), sum(i * i for i in range(1000)))\n";
    let case = Case {
        name: "python",
        kind: "thp",
        options: Vec::new(),
        words: strings(&["/usr/bin/python3", "-c", script]),
        ready: None,
        function: "PyLong_FromString",
        code: ("PyLong_FromString", "<PyLong_FromString+"),
        opening: String::new(),
        poke: "",
        says: "45 42 7 332833500\n".into(),
        status: 0,
    };
    let Some(report) = debug(&case, directory.path()) else { return };
    let file = &report["text"]["files"][0];
    // In Debian's build no block of 2 MiB holds only code.
    if file["mechanism"].is_null() {
        assert_eq!(file["reason"], "it holds no whole block of 2 MiB");
    } else {
        consistent(&report, "thp");
        let Some(sandbox) = sandbox(directory.path()) else { return };
        shut_in(&case, &sandbox, directory.path());
    }
}

#[test]
fn node() {
    if !have("node") {
        return;
    }
    let directory = on_disk();
    let source = "void *napi_register_module_v1(void *environment, void *exports) { return exports; }";
    let Some(addon) = compile("gcc", directory.path(), "addon.node", source, &["-shared", "-fPIC"]) else {
        return;
    };
    let script = format!(
        "console.log('ready');\n\
         const timer = setInterval(() => process.hrtime(), 1);\n\
         process.stdin.on('end', () => {{\n\
           clearInterval(timer);\n\
           const {{ execFileSync }} = require('child_process');\n\
           const again = execFileSync(process.execPath, ['-e', 'console.log(41 + 1)']).toString().trim();\n\
           console.log(again, typeof require('{addon}'), [3, 1, 2].sort().join(''));\n\
         }}).resume();"
    );
    let case = Case {
        name: "node",
        kind: "thp",
        options: Vec::new(),
        words: strings(&["node", "-e", &script]),
        ready: None,
        function: "uv_hrtime",
        code: ("uv_hrtime", "<uv_hrtime+"),
        opening: String::new(),
        poke: "",
        says: "42 object 123\n".into(),
        status: 0,
    };
    if let Some(report) = debug(&case, directory.path()) {
        consistent(&report, "thp");
    }
    let Some(sandbox) = sandbox(directory.path()) else { return };
    shut_in(&case, &sandbox, directory.path());
}

#[test]
fn mariadbd() {
    let server =
        ["/usr/sbin/mariadbd", "/usr/bin/mariadbd"].into_iter().find(|path| Path::new(path).exists());
    let Some(server) = server else { return skip("needs mariadbd (mariadb-server-core)") };
    let directory = on_disk();
    let data = directory.path().join("data");
    fs::create_dir(&data).unwrap();
    let (datadir, ready) = (format!("--datadir={}", data.display()), data.join("ready"));
    let mut words = vec![server, "--no-defaults", "--bootstrap", &datadir, "--innodb-buffer-pool-size=16M"];
    // Otherwise it reserves 8 TiB of addresses, which a debugger reads through for the core dump.
    words.extend(["--loose-innodb-buffer-pool-size-max=16M"]);
    words.extend(["--innodb-log-file-size=4M", "--skip-log-bin"]);
    if is_root() {
        words.push("--user=root");
    }
    // It reads statements from its input, one on a line. Their results go into files.
    let case = Case {
        name: "mariadbd",
        kind: "thp",
        options: Vec::new(),
        words: strings(&words),
        ready: Some(ready.clone()),
        function: "mysql_parse",
        code: ("mysql_parse", "<_Z11mysql_parse"),
        opening: format!("SELECT 'ready' INTO OUTFILE '{}';\n", ready.display()),
        poke: "SET @number = 1;\n",
        says: String::new(),
        status: 0,
    };
    let sum = data.join("sum");
    let report_file = directory.path().join("report.json");
    let (mut launcher, _) = launch(&case, &report_file);
    let query = format!(
        "CREATE TABLE IF NOT EXISTS mysql_numbers.n (n INT PRIMARY KEY) ENGINE=InnoDB;\n\
         INSERT INTO mysql_numbers.n WITH RECURSIVE r AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM r WHERE n < 900) \
         SELECT n FROM r;\n\
         SELECT SUM(n) FROM mysql_numbers.n INTO OUTFILE '{}';\n",
        sum.display()
    );
    let input = launcher.stdin.as_mut().unwrap();
    input.write_all(b"CREATE DATABASE mysql_numbers;\n").unwrap();
    input.write_all(query.as_bytes()).unwrap();
    let output = finish(launcher);
    assert_eq!(status(&output), 0, "{output:?}");
    assert_eq!(fs::read_to_string(&sum).unwrap(), "405450\n");
    consistent(&serde_json::from_str(&fs::read_to_string(&report_file).unwrap()).unwrap(), "thp");

    fs::remove_file(&ready).unwrap();
    debug(&case, directory.path());
    // Without a statement it ends at once.
    let Some(sandbox) = sandbox(directory.path()) else { return };
    shut_in(&case, &sandbox, directory.path());
}

#[test]
fn java() {
    if !Command::new("javac").arg("-version").output().is_ok_and(|output| output.status.success()) {
        return skip("needs javac");
    }
    let directory = on_disk();
    let source = directory.path().join("Calls.java");
    let library = "int answer(void) { return 42; }";
    let Some(library) = compile("gcc", directory.path(), "libanswer.so", library, &["-shared", "-fPIC"])
    else {
        return;
    };
    let code = format!(
        "public class Calls {{\n\
         static volatile boolean ended = false;\n\
         public static void main(String[] words) throws Exception {{\n\
           System.out.println(\"ready\");\n\
           Thread reader = new Thread(() -> {{\n\
             try {{ System.in.read(); }} catch (java.io.IOException error) {{ }}\n\
             ended = true;\n\
           }});\n\
           reader.start();\n\
           while (!ended) {{ Runtime.getRuntime().availableProcessors(); Thread.sleep(1); }}\n\
           System.load(\"{library}\");\n\
           Process child = new ProcessBuilder(\"/bin/echo\", \"42\").start();\n\
           String said = new String(child.getInputStream().readAllBytes()).trim();\n\
           System.out.println(said + \" \" + child.waitFor());\n\
         }} }}\n"
    );
    fs::write(&source, code).unwrap();
    let compiled = Command::new("javac").arg("-d").arg(directory.path()).arg(&source).output().unwrap();
    assert!(compiled.status.success(), "{compiled:?}");
    let class_path = directory.path().to_str().unwrap();
    let case = Case {
        name: "java",
        // libjvm.so is loaded later: only its file can be primed.
        kind: "auto",
        options: strings(&["--text-libs", "libjvm.so"]),
        words: strings(&["java", "-Xmx64m", "-cp", class_path, "Calls"]),
        ready: None,
        function: "JVM_ActiveProcessorCount",
        code: ("JVM_ActiveProcessorCount", "<JVM_ActiveProcessorCount+"),
        opening: String::new(),
        poke: "",
        says: "42 0\n".into(),
        status: 0,
    };
    if let Some(report) = debug(&case, directory.path()) {
        let files = report["text"]["files"].as_array().unwrap();
        let jvm = files.iter().find(|file| file["file"].as_str().unwrap().ends_with("libjvm.so"));
        let jvm = jvm.unwrap_or_else(|| panic!("{report:#}"));
        match jvm["mechanism"].as_str() {
            Some(mechanism) => assert_eq!(mechanism, "file", "{jvm:#}"),
            None => assert!(jvm["reason"].as_str().unwrap().contains("2 MiB"), "{jvm:#}"),
        }
    }
}
