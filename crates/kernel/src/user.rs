//! What the calling user has set for this process.

/// The permission bits that files which this process makes do not get (umask(2)), as the kernel shows them without changing them
/// for other threads; what no other user may have where it does not.
pub fn umask() -> u32 {
    const CAUTIOUS: u32 = 0o077;
    let text = crate::KernelRoot::live().read("proc/self/status").unwrap_or_default();
    let mask = text.lines().find_map(|line| line.strip_prefix("Umask:"));
    mask.and_then(|mask| u32::from_str_radix(mask.trim(), 8).ok()).unwrap_or(CAUTIOUS)
}
