//! The wrappers of the exec family (src/interpose.c), compiled by themselves under the address sanitizer.

use std::path::Path;
use std::process::Command;

#[test]
fn an_environment_that_names_ld_preload_twice_is_put_together_without_overlap() {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("exec");
    let built = Command::new("cc")
        .args(["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-w", "-o"])
        .arg(&program)
        .args([here.join("tests/exec.c"), here.join("src/interpose.c")])
        .arg("-ldl")
        .output()
        .expect("the C compiler that built the library");
    let said = String::from_utf8_lossy(&built.stderr);
    if !built.status.success() {
        megapage_testing::skip(&format!("needs a C compiler with the address sanitizer: {said}"));
        return;
    }
    let output = Command::new(&program).env("ASAN_OPTIONS", "detect_leaks=0").output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    let environment = String::from_utf8(output.stdout).unwrap();
    let lines: Vec<&str> = environment.lines().collect();
    // Ours first; one that is too long is left out, and those after it are not.
    // The program stands for the library, which has to be there.
    let libraries = format!("LD_PRELOAD={}:/a.so:/b.so:/c.so:/d.so", program.display());
    assert_eq!(lines, ["MEGAPAGE_HEAP=2m", &libraries, "A=1", "B=2"]);
}
