use super::*;
use std::path::Path;

#[test]
fn the_document_is_written_from_the_catalog() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../docs/doctor.md");
    if std::env::var_os("MEGAPAGE_WRITE_DOCS").is_some() {
        std::fs::write(&path, markdown()).unwrap();
    }
    let written = std::fs::read_to_string(&path).unwrap();
    assert!(written == markdown(), "docs/doctor.md is stale: see its section 'Findings'");
}
