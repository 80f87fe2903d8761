//! Every fuzzer: the name of its binary is the name of its target.

#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| megapage_fuzzing::run(env!("CARGO_BIN_NAME"), data));
