//! Settings of programs that manage huge pages themselves, as far as they matter for one that was looked at: what is known of
//! programs is in [`megapage_launch::applications`], what language runtimes need in `megapage_launch::runtimes`.

use crate::{How, Memory};
use megapage_launch::applications::{Application, Needs};

/// The settings of a program.
pub(crate) struct Own {
    /// Its own setting, where it does something here.
    pub how: Option<How>,
    /// Options of `megapage run` for it.
    pub options: Vec<&'static str>,
    /// Arguments for it.
    pub arguments: &'static [&'static str],
    /// What to know before.
    pub risk: Option<&'static str>,
}

/// What is known of the program. A setting that does nothing here is left out, and so are those of language runtimes, which
/// `megapage run` throws itself.
pub(crate) fn own(name: &str, memory: &Memory, thp_always: bool) -> Option<Own> {
    let known = Application::of_program(name)?;
    let needs = Needs { shared: Some(memory.shared), private: Some(memory.promotable) };
    let works = |takes_always: bool| thp_always || !takes_always;
    let setting = known.setting.filter(|setting| !setting.is_of_runtime && works(setting.takes_always));
    let how = setting.map(|setting| How { what: (setting.what)(&needs), why: setting.why.into() });
    let arguments = if how.is_some() { known.arguments } else { &[] };
    Some(Own { how, options: known.options(), arguments, risk: known.risk })
}
