//! The daemon's clients.

/// Listener that a client has connected to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Origin {
    Unix,
    Loopback,
}

/// The caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Client {
    pub origin: Origin,
    /// True for root and the daemon's user: they may know the addresses of other users' memory.
    pub trusted: bool,
}
