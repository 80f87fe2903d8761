//! The wrappers of the exec family (src/interpose.c), compiled by themselves under the address
//! sanitizer.

use std::path::Path;
use std::process::Command;

/// Returns the environment that the program tests/exec.c gives to the one that it executes.
fn environment_after_exec(confined: bool) -> Option<(Vec<String>, String)> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("exec-{confined}"));
    let built = Command::new("cc")
        .args(["-g", "-O1", "-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-w", "-o"])
        .arg(&program)
        .args([here.join("tests/exec.c"), here.join("src/interpose.c")])
        .arg("-ldl")
        .output()
        .expect("the C compiler that built the library");
    let said = String::from_utf8_lossy(&built.stderr);
    if !built.status.success() {
        assert!(said.contains("asan") || said.contains("-fsanitize"), "{said}");
        megapage_testing::skip(&format!("needs a C compiler with the address sanitizer: {said}"));
        return None;
    }
    let mut command = Command::new(&program);
    command.env("ASAN_OPTIONS", "detect_leaks=0").envs(confined.then_some(("CONFINED", "1")));
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {said}", output.status);
    let environment = String::from_utf8(output.stdout).unwrap();
    Some((environment.lines().map(String::from).collect(), program.display().to_string()))
}

#[test]
fn an_environment_that_names_ld_preload_twice_is_put_together_without_overlap() {
    let Some((lines, program)) = environment_after_exec(false) else { return };
    // The library comes first. An item that is too long is left out; later ones are kept. The
    // program stands for the library, which has to exist.
    let libraries = format!("LD_PRELOAD={program}:/a.so:/b.so:/c.so:/d.so");
    assert_eq!(lines, ["MEGAPAGE_HEAP=2m", &libraries, "A=1", "B=2"]);
}

#[test]
fn a_program_that_has_confined_itself_executes_another_without_a_look_at_it() {
    let Some((lines, _)) = environment_after_exec(true) else { return };
    assert!(lines.iter().all(|line| !line.starts_with("MEGAPAGE_HEAP")), "{lines:?}");
    assert!(lines.iter().any(|line| line == "LD_PRELOAD=/a.so"), "{lines:?}");
}
