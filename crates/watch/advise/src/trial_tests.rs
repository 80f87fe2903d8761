use super::*;

#[test]
fn regions_on_larger_folios_take_no_part() {
    let orders = |order: usize| {
        let mut folios = [0; 10];
        (folios[0], folios[order]) = (256, 256);
        Some(folios)
    };
    assert!(is_restored(orders(0)) && is_restored(None));
    assert!(!is_restored(orders(4)) && !is_restored(orders(9)));
}
