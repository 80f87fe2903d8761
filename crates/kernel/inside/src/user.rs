//! Identity of this process.

/// Returns the effective user, as geteuid(2) answers. Cannot fail.
pub fn effective_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns the effective group, as getegid(2) answers. Cannot fail.
pub fn effective_gid() -> u32 {
    rustix::process::getegid().as_raw()
}
