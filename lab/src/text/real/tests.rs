//! Tests on known values.

use super::*;

#[test]
fn what_clients_print_is_read() {
    let printed = "Latency histogram (values are in milliseconds)\n\
                          value  ------------- distribution ------------- count\n\
                          0.023 |**                                       10\n\
                          0.025 |**************************************** 985\n\
                          0.090 |*                                        4\n\
                          7.000 |                                         1\n \n\
                   General statistics:\n    total time:                          0.0500s\n\
                       total number of events:              1000\n";
    let seen = seen_by_sysbench(printed).unwrap();
    assert_eq!((seen.wall, seen.p99), (50_000.0, 25_000.0));
    assert!(seen_by_sysbench("FATAL: no").is_err());
    let times: Vec<f64> = times_of_pgbench("0 1 31 0 1700 1\n0 2 29 0 1700 2\n").collect();
    assert_eq!(times, [31_000.0, 29_000.0]);
}

#[test]
fn what_libhugetlbfs_warns_of_is_read() {
    let said =
        "libhugetlbfs [vm:1]: WARNING: Layout problem with segments 0 and 1:\n\tSegments would overlap\n";
    let read = "libhugetlbfs: Layout problem with segments 0 and 1: Segments would overlap";
    assert_eq!(warning(said).as_deref(), Some(read));
    assert_eq!(warning("libhugetlbfs [vm:1]: INFO: x\n"), None);
}

#[test]
fn jitter_is_the_deviation_as_a_share_of_the_mean() {
    // Deviations of 1, 0 and 1 around 100: their squares' sum over two is 1.
    assert_eq!(deviation(&[99.0, 100.0, 101.0]), Some(0.01));
    assert_eq!((deviation(&[5.0]), deviation(&[]), deviation(&[0.0, 0.0])), (None, None, None));
}
