//! Common parts of megapage's services, the daemon and the broker of huge pages. These are a socket
//! file that one service owns, a bound on the rate of accepted clients, and messages to the service
//! manager.

mod notify;
mod pace;
mod socket_file;

pub use notify::Notify;
pub use pace::Pace;
pub use socket_file::{SocketError, SocketFile, SocketLock, group_number};
