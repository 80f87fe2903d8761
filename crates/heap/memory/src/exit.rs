//! The ledger's part in the handshake at exit. Separate from [`crate::ledger`], which is also
//! compiled with other atomics.

use crate::ledger::Ledger;
use megapage_inside::ExitHandshake;

impl Ledger {
    /// Returns the handshake at exit.
    pub fn exit_handshake(&self) -> ExitHandshake<'_> {
        let [exiting, answer, patience] = self.exit_words();
        ExitHandshake { exiting, answer, patience }
    }
}
