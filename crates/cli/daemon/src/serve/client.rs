//! The daemon's clients.

/// Where a client came in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Unix,
    Loopback,
}

/// The caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Client {
    pub origin: Origin,
    /// Root, or the daemon's own user: may know where other users' memory lies.
    pub trusted: bool,
}
