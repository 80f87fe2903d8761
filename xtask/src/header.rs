//! The header `include/megapage.h`, made from the entry points and types of crates/segment/capi,
//! and checked against them.

use crate::finding::Finding;
use anyhow::{Context, Result};
use cbindgen::{Builder, Config, DocumentationStyle, FunctionConfig, Language, Layout, Style};
use std::fs;
use std::path::Path;

/// Path of the header.
pub const HEADER: &str = "include/megapage.h";
/// Sources of the header, in the order of their contents in it.
const SOURCES: [&str; 2] = ["crates/segment/capi/src/types.rs", "crates/segment/capi/src/entry.rs"];

const INTRODUCTION: &str = "\
/* megapage.h: huge memory with a name that outlives its program, and advice for huge pages.
 *
 * Made by `cargo xtask header` from crates/segment/capi/src; do not edit. Link with `pkg-config --cflags --libs megapage`. The
 * library is libmegapage_c.so; it does not replace malloc, as libmegapage.so does.
 *
 * Units       Lengths, sizes and offsets are in bytes.
 *
 * Errors      A function that returns int returns 0, or a negative errno. The message for people, one line, is given by
 *             megapage_message(), for each thread. On an error, results are not written, and nothing has changed unless
 *             the function says otherwise. Everywhere: -EINVAL for a null or misaligned pointer, a name that is none, or
 *             values that make no sense; -EBADF for a handle that is not open, or of another kind; -EBADMSG for memory
 *             that is damaged; the errno of a system call that failed; -EIO for what should never happen.
 *
 * Ownership   Pools, segments and heaps are numbers, as file descriptors are; the caller closes what it opens. Pointers that
 *             are given out lead into a segment and are valid until it (or its heap) is closed; nothing is to be freed.
 *             Strings that are passed in end in a zero byte, are UTF-8, and are not kept.
 *
 * Threads     Every function may be called by any thread at any time. Closing does not wait, but what another thread
 *             does with that handle at the same time is completed first. What is in a block is the program's: threads,
 *             and processes that share it, order their accesses themselves.
 *
 * Processes   One process owns a segment; others may share it. A child of fork(2) has its memory, too, and must leave the
 *             functions of the heap alone. When the process ends, however that comes about, segments are closed.
 *
 * Signals     No function is async-signal-safe.
 */";

/// Generates the header from the sources.
pub fn generate(root: &Path) -> Result<String> {
    let config = Config {
        language: Language::C,
        header: Some(INTRODUCTION.into()),
        include_guard: Some("MEGAPAGE_H".into()),
        sys_includes: vec!["stddef.h".into(), "stdint.h".into()],
        no_includes: true,
        cpp_compat: true,
        documentation_style: DocumentationStyle::Doxy,
        style: Style::Both,
        usize_is_size_t: true,
        line_length: 100,
        function: FunctionConfig { args: Layout::Auto, ..FunctionConfig::default() },
        ..Config::default()
    };
    let mut builder = Builder::new().with_config(config);
    for source in SOURCES {
        builder = builder.with_src(root.join(source));
    }
    let bindings = builder.generate().context("cbindgen cannot read crates/segment/capi")?;
    let mut header = Vec::new();
    bindings.write(&mut header);
    String::from_utf8(header).context("the header is not UTF-8")
}

/// Writes the header.
pub fn write(root: &Path) -> Result<()> {
    let path = root.join(HEADER);
    let header = generate(root)?;
    fs::create_dir_all(root.join("include")).context("include")?;
    fs::write(&path, header).with_context(|| path.display().to_string())
}

/// Checks that the existing header is the one that the sources give.
pub fn check(root: &Path) -> Result<Vec<Finding>> {
    let wanted = generate(root)?;
    let found = fs::read_to_string(root.join(HEADER)).unwrap_or_default();
    Ok(compare(&wanted, &found))
}

fn compare(wanted: &str, found: &str) -> Vec<Finding> {
    if wanted == found {
        return Vec::new();
    }
    let same = wanted.lines().zip(found.lines()).take_while(|(one, other)| one == other).count();
    let what = "differs from crates/segment/capi; run cargo xtask header, and raise the library's number if it is for the worse";
    vec![Finding::new(HEADER, same + 1, what)]
}

#[cfg(test)]
mod tests;
