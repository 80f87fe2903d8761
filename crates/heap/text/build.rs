//! Links the library so that it loads with old C libraries.

#[path = "../glibc/link.rs"]
mod link;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    link::link_for_old_glibc("../glibc".as_ref());
}
