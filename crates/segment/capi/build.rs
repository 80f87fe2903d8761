//! Names the library as programs that link to it will ask for it: the number rises when one of them would break.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libmegapage_c.so.0");
}
