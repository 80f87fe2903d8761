//! The bench's protocol (protocol.py) for Rust.

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, Result, Write};

fn send(text: &str) -> Result<()> {
    let (Some(out), Some(go)) = (std::env::var_os("BENCH_PHASES"), std::env::var_os("BENCH_GO")) else {
        print!("{text}");
        return Ok(());
    };
    OpenOptions::new().write(true).open(out)?.write_all(text.as_bytes())?;
    BufReader::new(File::open(go)?).read_line(&mut String::new())?;
    Ok(())
}

/// The set-up is done; what follows is measured.
pub fn steady() -> Result<()> {
    send("phase steady\n")
}

/// The measured work is done, and what it made is still there.
pub fn end(answer: u64) -> Result<()> {
    send(&format!("answer {answer}\nphase end\n"))
}

/// splitmix64
pub fn next(state: &mut u64) -> u64 {
    *state = state.wrapping_add(0x9E3779B97F4A7C15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58476D1CE4E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D049BB133111EB);
    z ^ (z >> 31)
}
