use super::*;

fn read(version: u32, environment: &[(&str, &str)], arguments: &[&str], is_java: bool) -> Options {
    let java = Java {
        version: Some(version),
        argument_files: BTreeMap::from([("big".to_string(), "-Xmx3g # the heap\n-cp \"a b\"\n".to_string())]),
        ..Java::default()
    };
    let environment = environment.iter().map(|(k, v)| (k.to_string(), v.to_string())).collect();
    let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
    Options::read(&java, &environment, &arguments, is_java)
}

#[test]
fn the_last_word_wins_and_the_programs_own_words_do_not_count() {
    let of = |arguments: &[&str]| read(17, &[], arguments, true).max_heap;
    assert_eq!(of(&["-Xmx512m", "-Xmx1g", "Main", "-Xmx9g"]), Some(Bytes::gib(1)));
    assert_eq!(of(&["-cp", "lib", "-Xmx2g", "-jar", "app.jar", "-Xmx9g"]), Some(Bytes::gib(2)));
    assert_eq!(of(&["-cp", "-Xmx9g", "Main"]), None);
    assert_eq!(of(&["-XX:MaxHeapSize=256m", "Main"]), Some(Bytes::mib(256)));
    assert_eq!(of(&["-Xmxmuch", "Main"]), None);
    assert_eq!(of(&["@big", "-Xmx4g", "Main"]), Some(Bytes::gib(4)));
    assert_eq!(of(&["@big", "Main"]), Some(Bytes::gib(3)), "the file's, without its comment");
    assert_eq!(read(8, &[], &["@big", "Main"], true).max_heap, None, "Java 8 knows no such files");
    assert_eq!(read(17, &[], &["-J-Xmx2g", "-Xmx1g"], false).max_heap, Some(Bytes::gib(2)));
}

#[test]
fn variables_have_their_order() {
    let both = [("JAVA_TOOL_OPTIONS", "-Xmx1g"), ("JDK_JAVA_OPTIONS", "-Xmx2g '-Da=b c'")];
    assert_eq!(read(17, &both, &["Main"], true).max_heap, Some(Bytes::gib(2)));
    assert_eq!(read(8, &both, &["Main"], true).max_heap, Some(Bytes::gib(1)), "since Java 9");
    assert_eq!(read(17, &both, &[], false).max_heap, Some(Bytes::gib(1)), "the launcher's alone");
    assert_eq!(read(17, &both, &["-Xmx3g", "Main"], true).max_heap, Some(Bytes::gib(3)));
    let last = [("_JAVA_OPTIONS", "-Xmx5g")];
    assert_eq!(read(17, &last, &["-Xmx3g", "Main"], true).max_heap, Some(Bytes::gib(5)));
    let chosen = [("JAVA_TOOL_OPTIONS", "-XX:+UseLargePages")];
    let options = read(17, &chosen, &["Main"], true);
    assert_eq!((options.large, options.chosen.as_deref()), (Some(true), Some("-XX:+UseLargePages")));
}

#[test]
fn what_decides_over_memory_is_read() {
    let words = [
        "-XX:+UseShenandoahGC",
        "-XX:-TieredCompilation",
        "-XX:ReservedCodeCacheSize=64m",
        "-XX:+UseLargePagesInMetaspace",
        "-XX:CompressedClassSpaceSize=256m",
        "-XX:MaxRAMPercentage=70.0",
        "-XX:MaxRAM=4g",
        "Main",
    ];
    let options = read(11, &[], &words, true);
    assert_eq!(options.collector, Some(Collector::Shenandoah));
    assert!(options.untiered && options.class_space_large && options.chosen.is_none());
    assert_eq!((options.code_cache, options.class_space), (Some(Bytes::mib(64)), Some(Bytes::mib(256))));
    assert_eq!((options.max_ram_percent, options.max_ram), (Some(70.0), Some(Bytes::gib(4))));
    assert_eq!(read(8, &[], &["-XX:MaxRAMFraction=2"], true).max_ram_percent, Some(50.0));
    assert!(read(11, &[], &["-XX:+UseSHM"], true).shm);
}
