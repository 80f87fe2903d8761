//! Access to the server without a daemon, for the fuzz targets.

use crate::serve;
use crate::shared::Shared;
use crate::telemetry::Telemetry;
use megapage_kernel::KernelRoot;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Returns the status, head and body with which a daemon that has just begun answers these bytes;
/// `None` if they are not yet a whole request. `trusted` means that root or the daemon's user asks,
/// `loopback` that the request comes over TCP.
pub fn http(request: &[u8], trusted: bool, loopback: bool) -> Option<(u16, Vec<u8>, Vec<u8>)> {
    serve::answer_to(shared(), request, trusted, loopback)
}

/// Returns everything that such a daemon sends a client of its socket, which sends these pieces and
/// then nothing more.
pub fn converse(pieces: &[&[u8]]) -> io::Result<Vec<u8>> {
    serve::converse(shared(), pieces)
}

fn shared() -> Arc<Shared> {
    let root = KernelRoot::captured(PathBuf::from("/nonexistent"));
    Arc::new(Shared::new(root, Telemetry::new(Duration::ZERO, 5, 100)))
}
