//! Exports that are a bare jump to a C function of ours: it sees the caller's call unchanged.

/// Exports each name as a jump to the function behind the arrow.
macro_rules! jumps {
    ($($name:ident => $target:ident),* $(,)?) => {$(
        // Two names may have one target.
        const _: () = {
            unsafe extern "C" {
                fn $target();
            }

            #[unsafe(no_mangle)]
            #[unsafe(naked)]
            unsafe extern "C" fn $name() {
                #[cfg(target_arch = "x86_64")]
                std::arch::naked_asm!("jmp {target}", target = sym $target);
                #[cfg(target_arch = "aarch64")]
                std::arch::naked_asm!("b {target}", target = sym $target);
            }
        };
    )*};
}

pub(crate) use jumps;
