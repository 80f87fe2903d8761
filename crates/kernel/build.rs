//! With the feature `bpf`: compiles the BPF programs that copy page tables and count calls.

fn main() {
    println!("cargo:rerun-if-changed=bpf");
    #[cfg(feature = "bpf")]
    {
        compile_bpf("page_tables");
        compile_bpf("calls");
    }
}

#[cfg(feature = "bpf")]
fn compile_bpf(name: &str) {
    use std::env;
    use std::path::PathBuf;
    use std::process::{Command, exit};

    let fail = |what: &str| -> ! {
        println!("cargo:warning={what}");
        exit(1)
    };
    println!("cargo:rerun-if-env-changed=CLANG");
    let clang = env::var("CLANG").unwrap_or_else(|_| "clang".into());
    let object = PathBuf::from(env::var("OUT_DIR").expect("cargo sets it")).join(format!("{name}.bpf.o"));
    let source = format!("bpf/{name}.bpf.c");
    // -g: the BTF by which libbpf finds the running kernel's offsets of fields.
    // Architecture that the program will run on, not that of this machine.
    let arm64 = env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|target| target == "aarch64");
    let compiled = Command::new(&clang)
        .args(arm64.then_some("-DMEGAPAGE_ARM64"))
        .args(["-g", "-O2", "-Wall", "-Werror", "-target", "bpf", "-mcpu=v3"])
        .args(["-c", &source, "-o"])
        .arg(&object)
        .output();
    match compiled {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            eprint!("{}", String::from_utf8_lossy(&output.stderr));
            fail(&format!(
                "{clang} cannot compile {source} (it takes clang 11 or later, with the BPF target)"
            ))
        }
        Err(error) => fail(&format!(
            "cannot run {clang}: {error}; install it (Debian: apt-get install clang), or name another with CLANG=..."
        )),
    }
}
