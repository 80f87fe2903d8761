//! A way to the server without a daemon, for the fuzz targets.

use crate::serve;
use crate::shared::Shared;
use crate::telemetry::Telemetry;
use megapage_kernel::KernelRoot;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The status, head and body that a daemon which has just begun answers these bytes with; `None` where they are no whole
/// request yet. `trusted`: root asks, or the daemon's user; `loopback`: over TCP.
pub fn http(request: &[u8], trusted: bool, loopback: bool) -> Option<(u16, Vec<u8>, Vec<u8>)> {
    serve::answer_to(shared(), request, trusted, loopback)
}

/// All that such a daemon sends a client of its socket that sends these pieces, one after another, and then nothing more.
pub fn converse(pieces: &[&[u8]]) -> io::Result<Vec<u8>> {
    serve::converse(shared(), pieces)
}

fn shared() -> Arc<Shared> {
    let root = KernelRoot::captured(PathBuf::from("/nonexistent"));
    Arc::new(Shared::new(root, Telemetry::new(Duration::ZERO, 5, 100)))
}
