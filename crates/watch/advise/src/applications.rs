//! Settings of programs that manage huge pages themselves, as far as they matter for an observed
//! program. [`megapage_launch::applications`] holds the knowledge about programs, and
//! `megapage_launch::runtimes` the needs of language runtimes.

use crate::{How, Memory};
use megapage_launch::applications::{Application, Needs};

/// Settings of a program.
pub(crate) struct Own {
    /// Its setting, if it has an effect here.
    pub how: Option<How>,
    /// Options of `megapage run` for the program.
    pub options: Vec<&'static str>,
    /// Arguments for the program.
    pub arguments: &'static [&'static str],
    /// Risk to know beforehand.
    pub risk: Option<&'static str>,
}

/// Returns the known settings of the program `name`. Omits a setting without effect here, and those
/// of language runtimes, which `megapage run` sets itself.
pub(crate) fn own(name: &str, memory: &Memory, thp_always: bool) -> Option<Own> {
    let known = Application::of_program(name)?;
    let needs = Needs { shared: Some(memory.shared), private: Some(memory.promotable) };
    let works = |takes_always: bool| thp_always || !takes_always;
    let setting = known.setting.filter(|setting| !setting.is_of_runtime && works(setting.takes_always));
    let how = setting.map(|setting| How { what: (setting.what)(&needs), why: setting.why.into() });
    let arguments = if how.is_some() { known.arguments } else { &[] };
    Some(Own { how, options: known.options(), arguments, risk: known.risk })
}
