//! Message for policies that want memory zeroed ahead, as HawkEye's kernel does it: it names the
//! substitutes on a stock kernel.

use megapage_decide::State;
use tracing::info;

/// Reporter of one message, when the policy first wants memory zeroed ahead: that this is not done,
/// and the substitutes.
#[derive(Debug, Default)]
pub(crate) struct Zeroing {
    said: bool,
}

impl Zeroing {
    /// Reports a wish for zeroed memory, once. Call it after each step.
    pub(crate) fn note(&mut self, state: &State) {
        if let Some(line) = self.line(state.policy().name(), state.lacked_zeroing()) {
            info!("{line}");
        }
    }

    fn line(&mut self, policy: &str, lacks: bool) -> Option<String> {
        if !lacks || std::mem::replace(&mut self.said, true) {
            return None;
        }
        Some(format!(
            "policy {policy} wants free huge pages zeroed ahead: Linux has no interface for it, each fault clears its page, and the \
             policy goes on without; 'megapage pool serve' keeps zeroed pages for programs under 'megapage run --pool', and the \
             boot parameters init_on_alloc=1 init_on_free=1 clear memory when it is freed"
        ))
    }
}

#[cfg(test)]
mod tests;
