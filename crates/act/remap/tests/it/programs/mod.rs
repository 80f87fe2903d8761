//! C programs with 6 MiB of code and 5 MiB of constants, linked in different ways.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

/// Source of a program that shows if it is whole, and touches every 2 MiB of it. It has code at
/// both ends of the text, constants, data, .bss, thread-local storage, pointers that are relocated,
/// a constructor. With an argument it then waits for the end of its input.
pub const SOURCE: &str = r#"
#include <stdio.h>
#define HIDDEN __attribute__((visibility("hidden")))
__asm__(".text\n.globl first\nfirst: lea 1(%rdi), %eax\n ret\n .skip 6 << 20, 0x90\n"
        ".globl last\nlast: lea 2(%rdi), %eax\n ret\n"
        ".section .rodata\n.globl constants\nconstants: .skip 5 << 20, 7\n.text\n");
HIDDEN int first(int), last(int);
HIDDEN extern const unsigned char constants[5 << 20];
static int (*const both[])(int) = {first, last};
static int data[50000] = {5, 6, [49999] = 8};
static unsigned char zeros[3 << 20];
static __thread int local = 9;
static int constructed;
__attribute__((constructor)) static void construct(void) { constructed = 1; }
int entry(int count, char **arguments) {
    unsigned long sum = 0;
    for (int i = 0; i < 5 << 20; i += 64) sum += constants[i];
    for (const char *code = (const char *)first; code < (const char *)last; code += 4096) sum += *code;
    for (int i = 0; i < 3 << 20; i += 64) sum += zeros[i];
    zeros[1 << 20] = 1;
    printf("%d %d %lu %d %d %d %d %s\n", both[0](10), both[1](20), sum, data[1] + data[49999],
           zeros[1 << 20], local, constructed, count > 1 ? arguments[1] : "");
    fflush(stdout);
    while (count > 1 && getchar() != EOF) {}
    return 3;
}
#ifndef LIBRARY
int main(int count, char **arguments) { return entry(count, arguments); }
#endif
"#;

/// Compiles and links [`SOURCE`] into `directory`; `None` if the linker is missing.
pub fn build(directory: &Path, name: &str, options: &[&str]) -> Option<PathBuf> {
    let linker = options.iter().find_map(|option| option.strip_prefix("-fuse-ld="));
    if let Some(linker) = linker
        && !is_there(&format!("ld.{linker}"))
        && !is_there(linker)
    {
        megapage_testing::skip(&format!("needs the linker {linker}"));
        return None;
    }
    let source = directory.join(format!("{name}.c"));
    fs::write(&source, SOURCE).unwrap();
    let path = directory.join(name);
    let output =
        Command::new("gcc").arg("-O1").arg(&source).args(options).arg("-o").arg(&path).output().unwrap();
    assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stderr));
    Some(path)
}

fn is_there(program: &str) -> bool {
    std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).any(|d| d.join(program).exists())
}

/// Creates a directory on the disk: the usual place of temporary files may be in memory.
pub fn on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

/// Returns the program's output, and checks that it has ended as it should.
pub fn output(program: &Path) -> String {
    let output = patiently(|| Command::new(program).stdin(Stdio::null()).output());
    assert_eq!(output.status.code(), Some(3), "{}: {output:?}", program.display());
    String::from_utf8(output.stdout).unwrap()
}

/// Starts a program that this process has just written. While another thread starts a program, its
/// child holds our descriptors for a moment. A file that is open for writing cannot be executed
/// (ETXTBSY).
pub fn patiently<T>(start: impl Fn() -> io::Result<T>) -> T {
    for _ in 0..1000 {
        match start() {
            Err(error) if error.kind() == io::ErrorKind::ExecutableFileBusy => {
                sleep(Duration::from_millis(10))
            }
            other => return other.unwrap(),
        }
    }
    panic!("the program stays open for writing");
}
