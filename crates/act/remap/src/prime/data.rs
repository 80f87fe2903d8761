//! Blocks of a file that hold data. Pure but for the extents, which the caller reads.

use crate::layout::{FileRange, HUGE};
use std::io;
use std::ops::Range;

/// Most parts of a file that are looked at: a file can have as many as it has pages.
const MOST_PARTS: usize = 1 << 20;

/// Returns the blocks of `ranges` of which at least `least` bytes are data, and true if the list
/// ends early. It ends early when it holds `room` bytes, which is all that memory could keep, or
/// after [`MOST_PARTS`] parts. `extents` gives the data in a range, in order. The time grows with
/// the number of parts, never with the size of the file.
pub(super) fn blocks<I: Iterator<Item = io::Result<Range<u64>>>>(
    ranges: &[FileRange],
    least: u64,
    room: u64,
    extents: impl Fn(FileRange) -> I,
) -> io::Result<(Vec<FileRange>, bool)> {
    let mut found = Found { blocks: Vec::new(), left: room / HUGE * HUGE };
    let mut parts = 0;
    for range in ranges {
        // The block that is looked at, and the data seen in it.
        let (mut block, mut held) = (range.offset, 0);
        for extent in extents(*range) {
            let extent = extent?;
            parts += 1;
            if parts > MOST_PARTS {
                return Ok((found.blocks, true));
            }
            let (mut at, end) = (extent.start, extent.end);
            while at < end {
                let of = at / HUGE * HUGE;
                if of != block {
                    (block, held) = (of, 0);
                }
                let whole = if at == of { (end - at) / HUGE * HUGE } else { 0 };
                let part = if whole > 0 { whole } else { end.min(of + HUGE) - at };
                let is_news = held < least && held + part >= least;
                held += part;
                at += part;
                let wanted = if whole > 0 { whole } else { HUGE };
                if is_news && !found.add(of, wanted) {
                    return Ok((found.blocks, true));
                }
            }
        }
    }
    Ok((found.blocks, false))
}

struct Found {
    blocks: Vec<FileRange>,
    left: u64,
}

impl Found {
    /// Adds whole blocks. Returns false if there is no room for all of them.
    fn add(&mut self, offset: u64, wanted: u64) -> bool {
        let length = wanted.min(self.left);
        self.left -= length;
        match self.blocks.last_mut() {
            _ if length == 0 => {}
            Some(last) if last.offset + last.length == offset => last.length += length,
            _ => self.blocks.push(FileRange { offset, length }),
        }
        length == wanted
    }
}

#[cfg(test)]
#[allow(clippy::single_range_in_vec_init, reason = "a list of one extent")]
mod tests {
    use super::*;

    const WHOLE: FileRange = FileRange { offset: 0, length: 16 << 40 };
    const ALL: u64 = HUGE - 4095;

    fn found(ranges: &[FileRange], least: u64, room: u64, data: &[Range<u64>]) -> (Vec<(u64, u64)>, bool) {
        let inside = |range: FileRange| {
            let (start, end) = (range.offset, range.offset + range.length);
            let cut = data.iter().map(move |data| data.start.max(start)..data.end.min(end));
            cut.filter(|data| !data.is_empty()).map(Ok).collect::<Vec<_>>().into_iter()
        };
        let (blocks, cut) = blocks(ranges, least, room, inside).unwrap();
        (blocks.iter().map(|block| (block.offset / HUGE, block.length / HUGE)).collect(), cut)
    }

    #[test]
    fn only_blocks_with_data_are_left() {
        let one = |least, data: &[Range<u64>]| {
            let (blocks, cut) = found(&[WHOLE], least, u64::MAX, data);
            assert!(!cut);
            blocks
        };
        assert_eq!(one(HUGE / 2, &[]), []);
        // Half of block 1, all of 2 and 3, less than half of 4; and a whole one far behind.
        let data = [HUGE + HUGE / 2..4 * HUGE + 4096, 4 << 40..(4 << 40) + HUGE];
        assert_eq!(one(HUGE / 2, &data), [(1, 3), (2 << 20, 1)]);
        assert_eq!(one(ALL, &data), [(2, 2), (2 << 20, 1)]);
        // Two parts of one block count together, and the block once.
        let parts = [0..HUGE / 4, HUGE / 2..HUGE * 3 / 4, HUGE * 7 / 8..HUGE];
        assert_eq!(one(HUGE / 2, &parts), [(0, 1)]);
        assert_eq!(one(HUGE * 3 / 4, &parts), []);
        // The last page of a file may be a part of one.
        assert_eq!(one(ALL, &[0..HUGE - 4095]), [(0, 1)]);
        assert_eq!(one(ALL, &[0..HUGE - 4096]), []);
    }

    #[test]
    fn ranges_are_looked_at_one_by_one() {
        let ranges =
            [FileRange { offset: 2 * HUGE, length: HUGE }, FileRange { offset: 8 * HUGE, length: 2 * HUGE }];
        assert_eq!(found(&ranges, ALL, u64::MAX, &[0..9 * HUGE]), (vec![(2, 1), (8, 1)], false));
    }

    #[test]
    fn no_more_is_listed_than_memory_could_keep() {
        let all = std::slice::from_ref(&(0..16 << 40));
        assert_eq!(found(&[WHOLE], ALL, 5 * HUGE + 7, all), (vec![(0, 5)], true));
        assert_eq!(found(&[WHOLE], ALL, 5 * HUGE, &[0..5 * HUGE]), (vec![(0, 5)], false));
        // Pages here and there, without end.
        let pages = |_| (0..).map(|number: u64| Ok(number * HUGE..number * HUGE + 4096));
        let (listed, cut) = blocks(&[WHOLE], ALL, u64::MAX, pages).unwrap();
        assert!(listed.is_empty() && cut);
        let failing = |_| std::iter::once(Err(io::ErrorKind::Other.into()));
        assert!(blocks(&[WHOLE], ALL, u64::MAX, failing).is_err());
    }
}
