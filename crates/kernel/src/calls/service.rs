//! What megapage's services, the daemon and the broker of huge pages, share: a socket in the file system that is theirs,
//! a bound on how fast clients are let in, and word to the service manager.

mod notify;
mod pace;
mod socket_file;

pub use notify::Notify;
pub use pace::Pace;
pub use socket_file::{SocketError, SocketFile, SocketLock, group_number};
