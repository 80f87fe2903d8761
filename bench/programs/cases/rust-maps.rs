// program: Rust, HashMap and BTreeMap
// class: Rust
// version: rustc --version
// random: yes
// expect: 1500568300941
// large: 4g
// best: mimalloc

#[path = "../lib/phases.rs"]
mod phases;

use std::collections::{BTreeMap, HashMap};

fn main() -> std::io::Result<()> {
    let size = std::env::var("BENCH_SIZE").map_or(0, |size| size.parse().unwrap_or(0));
    let count = if size > 0 { size / 170 } else { 1_500_000 };
    let (mut state, mut total) = (1, 0u64);
    let keys: Vec<u64> = (0..count).map(|_| phases::next(&mut state)).collect();
    let mut hashed: HashMap<u64, Box<[u64; 4]>> = HashMap::new();
    let mut ordered: BTreeMap<u64, String> = BTreeMap::new();
    for (at, &key) in keys.iter().enumerate() {
        hashed.insert(key, Box::new([at as u64; 4]));
        ordered.insert(key, format!("value {at}"));
    }
    phases::steady()?;
    for _ in 0..if size > 0 { 3_000_000 } else { 2_000_000 } {
        let key = keys[(phases::next(&mut state) % count) as usize];
        total = total.wrapping_add(hashed[&key][2]);
        total += ordered[&key].len() as u64;
    }
    phases::end(total)
}
