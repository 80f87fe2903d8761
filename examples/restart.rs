//! A table that survives a restart: the first run builds it, the next one finds it.
//!
//! cargo run --release -p megapage-segment --example restart [DIRECTORY]

#![forbid(unsafe_code)]

use megapage_segment::heap::{Request, Tag};
use megapage_segment::{Heap, Options, Pool};
use megapage_units::{Bytes, PageSize};
use std::error::Error;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};

const TABLE: Tag = Tag::named("steps/1");
const NUMBERS: usize = 500_000;

/// Counts the steps until each number comes to 1: an even number is halved, an odd one tripled plus
/// one.
fn build(table: &[AtomicU64]) {
    for (start, steps) in table.iter().enumerate().skip(1) {
        let (mut number, mut count) = (start as u64, 0);
        while number != 1 {
            number = if number.is_multiple_of(2) { number / 2 } else { 3 * number + 1 };
            count += 1;
        }
        steps.store(count, Ordering::Relaxed);
    }
}

/// One run of the program, in a pool on a mounted hugetlbfs or in `directory`: what it has to say.
pub fn run(directory: Option<&Path>) -> Result<String, Box<dyn Error>> {
    let application = "example-rs".parse()?;
    let pool = match directory {
        Some(directory) => Pool::open_in(directory, &application, PageSize::HUGE_2M)?,
        None => Pool::open(&application, PageSize::HUGE_2M)?,
    };
    let options = Options::new("steps".parse()?, Bytes::mib(8)).reuse();
    let (heap, _) = Heap::open_or_format(pool.open_segment(&options)?)?;
    let (root, what) = match heap.root()? {
        Some(root) => (root, "found"),
        None => {
            let root = heap.allocate(Request::new(NUMBERS as u64 * 8, TABLE).zeroed())?;
            build(heap.block(root, TABLE)?.words());
            // Only what is whole becomes the root: a kill before this leaves nothing to be found.
            heap.set_root(Some(root))?;
            (root, "built")
        }
    };
    let table = heap.block(root, TABLE)?;
    let steps = table.words()[27].load(Ordering::Relaxed);
    Ok(format!("{what} {} bytes: 27 comes to 1 after {steps} steps", table.len()))
}

fn main() -> Result<(), Box<dyn Error>> {
    let directory = std::env::args_os().nth(1).map(PathBuf::from);
    println!("{}", run(directory.as_deref())?);
    Ok(())
}
