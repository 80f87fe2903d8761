//! Memory that the program has excluded from huge pages is no candidate, and is counted.

use megapage_act::promote::candidates;
use megapage_kernel::{KernelRoot, TimedMemory, TimedPages};
use megapage_units::Pid;

#[test]
fn what_the_program_keeps_on_base_pages_is_not_asked_for() {
    let bytes = 16 << 20;
    let memory = TimedMemory::map(bytes, TimedPages::Base, &mut |_| true).unwrap().expect("goes on");
    let own = Pid(std::process::id().cast_signed());
    let found = candidates(&KernelRoot::live(), own, 256, 10_000).unwrap();
    let inside = |region: &&megapage_units::HugePage| region.range().intersection(memory.range()).is_some();
    assert_eq!(found.regions.iter().filter(inside).count(), 0);
    assert!(found.excluded.0 >= bytes as u64, "{}", found.excluded);
}
