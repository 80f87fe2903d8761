//! Fuzz targets: one function for each parser and protocol. Each takes any bytes, and panics if a
//! required property does not hold; the least property is that nothing panics.
//!
//! The fuzzers in `fuzz/`, a separate workspace that needs a nightly compiler, call these functions
//! with inputs that libFuzzer generates (`make fuzz`). The tests here call them on stable with
//! every seed and every input that has ever failed, which lie in `fixtures/fuzz/TARGET/`.
//! CONTRIBUTING.md says how to add either.
//!
//! Architecture invariant: only for tests and fuzzers; no crate that ships depends on this one. A
//! target is deterministic, needs no rights, and touches only its input and its own files.

#![forbid(unsafe_code)]

pub mod binaries;
mod c_calls;
pub mod files;
pub mod machine;
pub mod processes;
pub mod programs;
pub mod protocols;
pub mod segments;
mod tree;

/// One target.
#[derive(Clone, Copy, Debug)]
pub struct Target {
    /// Its name: of its binary in `fuzz/Cargo.toml`, and of the directory of its seeds.
    pub name: &'static str,
    /// Function that panics if the input breaks a property.
    pub run: fn(&[u8]),
}

/// Runs the target of this name.
///
/// # Panics
/// If there is none, or if the input breaks a property.
pub fn run(name: &str, data: &[u8]) {
    let target = TARGETS.iter().find(|target| target.name == name).expect("a fuzzer has a target's name");
    (target.run)(data);
}

macro_rules! targets {
    ($($name:ident: $module:ident,)*) => {
        /// All targets.
        pub const TARGETS: &[Target] = &[$(Target { name: stringify!($name), run: $module::$name },)*];
    };
}

targets! {
    maps: processes,
    smaps: processes,
    pagemap: processes,
    status: processes,
    stat: processes,
    cgroup: processes,
    limits: processes,
    limits_conf: processes,
    unit: programs,
    meminfo: machine,
    vmstat: machine,
    buddy: machine,
    pagetype: machine,
    zoneinfo: machine,
    pressure: machine,
    mountinfo: machine,
    tables: machine,
    page_table: machine,
    cpuid: machine,
    cgroup_tree: machine,
    settings_tree: machine,
    machine_tree: machine,
    doctor_tree: machine,
    thp_record: machine,
    elf_remap: binaries,
    elf_launch: binaries,
    segment: segments,
    c_handles: segments,
    broker: protocols,
    broker_status: protocols,
    broker_leases: protocols,
    http: protocols,
    http_pieces: protocols,
    daemon_answer: protocols,
    ledger: protocols,
    text_ledger: protocols,
    log: programs,
    jvm: programs,
    sizes: programs,
    pool_spec: programs,
    trace: programs,
    recording: programs,
    config: files,
    state: files,
    access_times: files,
    loan: files,
    pool_persist: files,
}
