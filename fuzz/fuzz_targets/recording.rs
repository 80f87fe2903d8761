#![no_main]

libfuzzer_sys::fuzz_target!(|data: &[u8]| megapage_fuzzing::programs::recording(data));
