use super::*;

fn parse(text: &str) -> Result<Vec<Mapping>, Complaint> {
    let mut parser = Parser { mappings: Vec::new(), wrong: None };
    let _ = text.lines().enumerate().all(|(index, line)| parser.take(index + 1, line));
    parser.end()
}

const SAMPLE: &str = "\
55d1c7a00000-55d1c7a21000 rw-p 00000000 00:00 0                          [heap]
Size:                132 kB
KernelPageSize:        4 kB
Rss:                  64 kB
Pss:                  58 kB
Shared_Clean:          4 kB
Shared_Dirty:          8 kB
Referenced:           60 kB
Anonymous:            64 kB
KSM:                  12 kB
THPeligible:           0
VmFlags: rd wr mr mw me ac sd
7f0000000000-7f0040000000 rw-p 00000000 00:00 0
KernelPageSize:        4 kB
Rss:              409600 kB
Anonymous:        409600 kB
AnonHugePages:    407552 kB
ShmemPmdMapped:        0 kB
FilePmdMapped:         0 kB
Shared_Hugetlb:        0 kB
Private_Hugetlb:       0 kB
Swap:                  8 kB
THPeligible:           1
7f4000000000-7f4080000000 rw-p 00000000 00:10 1042                       /anon_hugepage (deleted)
KernelPageSize:  1048576 kB
Rss:                   0 kB
Private_Hugetlb: 1048576 kB
7f5000000000-7f5000400000 rw-s 00000000 00:10 77                         /anon_hugepage (deleted)
KernelPageSize:     2048 kB
Shared_Hugetlb:     2048 kB
Private_Hugetlb:    2048 kB
7ffc00000000-7ffc00021000 rw-p 00000000 00:00 0                          [stack]
Rss:                  16 kB
";

#[test]
fn each_backing_is_distinguished() {
    let mappings = parse(SAMPLE).unwrap();
    assert_eq!(mappings.len(), 5);
    let sum = backing(&mappings);
    assert_eq!(sum.hugetlb_1g, Bytes::gib(1));
    assert_eq!(sum.hugetlb_2m, Bytes::mib(4));
    assert_eq!(sum.thp, Bytes::kib(407_552));
    assert_eq!(sum.base, Bytes::kib(64 + 2048 + 16));
    assert_eq!(sum.total(), sum.huge() + sum.base);
    let shared: Bytes = mappings.iter().map(|mapping| mapping.hugetlb_shared).sum();
    assert_eq!(shared, Bytes::mib(2), "of the hugetlb pages");
    assert_eq!(mappings[1].swap, Bytes::kib(8));
    assert_eq!((mappings[0].referenced, mappings[0].pss), (Bytes::kib(60), Bytes::kib(58)));
    assert_eq!((mappings[0].shared, mappings[0].ksm), (Bytes::kib(12), Bytes::kib(12)));
    assert!(mappings[0].has_flag("mr") && mappings[0].has_flag("sd") && !mappings[0].has_flag("m"));
    assert!(mappings[1].thp_eligible && !mappings[0].thp_eligible);
    assert_eq!((mappings[2].device, mappings[2].offset, mappings[2].inode), ((0, 0x10), 0, 1042));
    assert!(mappings.iter().all(|mapping| !mapping.is_special()));
    let heap: Vec<bool> = mappings.iter().map(Mapping::is_heap_like).collect();
    assert_eq!(heap, [true, true, true, false, false]);
}

#[test]
fn a_malformed_line_is_named() {
    assert_eq!(parse("Rss: 4 kB\n").unwrap_err().0, 1);
    assert_eq!(parse("1000-2000 rw-p 0 00:00 0 \nRss: much\n").unwrap_err().0, 2);
    assert_eq!(parse("2000-1000 rw-p 0 00:00 0 \n").unwrap_err().0, 1);
}

#[test]
fn our_own_mappings_hold_our_own_code() {
    let mappings = read_own_smaps(&KernelRoot::live()).unwrap();
    let here = our_address();
    assert!(mappings.iter().any(|m| m.range.start() <= here && here < m.range.end()));
    assert!(backing(&mappings).total() > Bytes::kib(100));
}

fn our_address() -> u64 {
    our_address as fn() -> u64 as usize as u64
}
