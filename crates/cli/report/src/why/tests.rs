use super::*;
use megapage_units::VirtRange;

#[test]
fn folios_are_named_by_size_and_only_where_there_are_some() {
    let at = |folios| At {
        address: 0,
        mapping: String::new(),
        range: VirtRange::new(0, 1 << 21).unwrap(),
        on: "base pages",
        present: 300,
        zero_page: 0,
        swapped: 0,
        folios,
    };
    let some = at(Some([200, 0, 0, 0, 100, 0, 0, 0, 0, 0]));
    assert_eq!(
        folios(&some),
        "    base pages by what they lie on: 200 on folios of 4k, 100 on folios of 64k\n"
    );
    assert_eq!(folios(&at(Some([300, 0, 0, 0, 0, 0, 0, 0, 0, 0]))), "");
    assert_eq!(folios(&at(None)), "");
}
