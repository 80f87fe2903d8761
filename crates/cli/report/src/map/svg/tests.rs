use super::*;
use crate::synthetic::{self, accessed};
use megapage_snapshot::{MappingKind, Process};

fn picture(process: Process) -> String {
    let snapshot = synthetic::snapshot(vec![process]);
    svg(&Map::new(&snapshot, snapshot.processes[0].id.pid).unwrap())
}

#[test]
fn the_store_looks_as_before() {
    synthetic::assert_golden("map.svg", &picture(synthetic::store()));
}

#[test]
fn a_terabyte_is_no_larger_a_picture_than_a_few_gigabytes() {
    let mut vast = synthetic::process(1, "vast");
    for number in 0..64u64 {
        let start = 0x1000_0000_0000 + (number << 36);
        synthetic::map(&mut vast, start, 1 << 13, MappingKind::Anonymous, "", |number, region| {
            region.accessed = accessed((number * 7919 % 513) as u16);
        });
    }
    let text = picture(vast);
    assert!(text.len() < 400_000, "{}", text.len());
    assert!(text.contains("mean of the 256 regions of a cell"));
}

#[test]
fn a_name_cannot_become_markup() {
    let mut process = synthetic::store();
    process.name = "<script>".into();
    process.mappings[0].name = "/tmp/<b>&".into();
    let text = picture(process);
    assert!(!text.contains("<script>") && !text.contains("<b>"), "{text}");
    assert!(text.contains("&lt;script&gt;"));
}

#[test]
fn an_empty_process_has_a_picture() {
    let text = picture(synthetic::process(1, "kthread"));
    assert!(text.contains("0 B present, - of it") && text.ends_with("</svg>\n"), "{text}");
}

#[test]
fn nothing_is_drawn_beside_the_plot() {
    for regions in [1, 7, 250, 1000, 3333, 5000] {
        let mut process = synthetic::process(1, "one");
        synthetic::map(&mut process, 0x1000_0000_0000, regions, MappingKind::Heap, "[heap]", |_, _| ());
        let layout = Layout::new(&process, MOST_BANDS, |lengths| cell_width(lengths).is_some());
        let width = cell_width(&lengths(&layout)).unwrap();
        let panels = flow(&layout, width);
        assert!(panels.len() <= PANELS.len(), "{regions} regions: {} panels", panels.len());
        for piece in panels.iter().flat_map(|panel| &panel.pieces) {
            let end = piece.x + piece.items.len() as f64 * width;
            assert!(piece.x >= LEFT && end <= LEFT + PLOT + 1e-3, "{regions}: {} to {end}", piece.x);
        }
    }
}
