//! Sets the soname that programs record when they link to the library. Its number rises with a
//! version that would break one of them. Also links the library so that it loads with old C
//! libraries.

#[path = "../../heap/glibc/link.rs"]
mod link;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libmegapage_c.so.0");
    link::link_for_old_glibc("../../heap/glibc".as_ref());
}
