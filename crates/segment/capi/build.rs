//! Names the library as programs that link to it will ask for it: the number rises when one of them would break.
//! Links it so that it loads with old C libraries.

#[path = "../../heap/glibc/link.rs"]
mod link;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libmegapage_c.so.0");
    link::link_for_old_glibc("../../heap/glibc".as_ref());
}
