use super::*;

#[test]
fn a_changed_signature_is_caught() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let header = generate(root).unwrap();
    for declared in [
        "int megapage_pool_open(const char *application,",
        "uint64_t megapage_tag(const char *name);",
        "#define MEGAPAGE_UNLINK_NEVER 2",
        "} megapage_handle;",
        "size_t length",
    ] {
        assert!(header.contains(declared), "{declared} is missing from\n{header}");
    }
    // Each function that the library exports is declared.
    let entry = fs::read_to_string(root.join(SOURCES[1])).unwrap();
    let exported = entry.lines().filter_map(|line| line.strip_prefix("pub extern \"C\" fn "));
    let names: Vec<&str> = exported.filter_map(|line| line.split_once('(').map(|(name, _)| name)).collect();
    assert!(names.len() > 20, "{names:?}");
    for name in names {
        assert!(header.contains(&format!("{name}(")), "{name}");
    }
    assert!(compare(&header, &header).is_empty());
    let changed = header.replace("uint64_t page_size", "uint32_t page_size");
    let found = compare(&header, &changed);
    assert_eq!((found.len(), found[0].path.as_str()), (1, HEADER));
    assert!(found[0].line > 30, "the line that differs: {}", found[0].line);
}
