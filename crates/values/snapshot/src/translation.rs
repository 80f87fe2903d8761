//! Cost of address translation for a process.

use serde::Serialize;

megapage_units::named! {
    /// Source of a value of translation cost.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
    #[serde(rename_all = "kebab-case")]
    pub enum CostSource {
        /// Counted by the processor's performance monitoring unit: page-walk cycles over all
        /// cycles.
        Measured = "measured",
        /// Modelled from sampled re-access rates and the TLB's geometry.
        Estimated = "estimated",
        /// Tried: some regions were promoted, and progress compared before and after.
        Tried = "tried",
    }
}

/// Translation cost of a process: the share of its cycles spent in page walks. `low` to `high` is
/// an interval of about 90 %; `0 <= low <= share <= high < 1`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct TranslationCost {
    /// The share, 0 to 1.
    pub share: f64,
    /// The lower end of the interval.
    pub low: f64,
    /// The upper end of the interval.
    pub high: f64,
    /// Source of the values.
    pub source: CostSource,
}
