//! Messages of programs about huge pages that they did not get, and their meanings.

use serde::{Deserialize, Serialize};
use std::sync::LazyLock;

/// Content of `messages.toml`.
#[derive(Deserialize)]
struct Messages {
    message: Vec<Message>,
}

/// A known message: its wordings in several releases, and its meaning.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Message {
    /// The wordings. Each is a list of parts; a line has to hold all of them.
    forms: Vec<Vec<String>>,
    /// The program that prints it.
    program: String,
    /// The event that it reports.
    meaning: String,
    /// The remedy.
    remedy: String,
}

/// The known messages, their forms in lower case; the first that fits counts.
static MESSAGES: LazyLock<Vec<Message>> = LazyLock::new(|| {
    let text = include_str!("messages.toml");
    let mut known: Messages = toml::from_str(text).expect("messages.toml is valid");
    let forms = known.message.iter_mut().flat_map(|message| &mut message.forms).flatten();
    forms.for_each(|part| part.make_ascii_lowercase());
    known.message
});

/// A recognised line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Explained {
    /// The program that prints such a line.
    pub program: &'static str,
    /// The line, as it first occurred.
    pub line: String,
    /// Number of occurrences.
    pub times: u64,
    /// The event that it reports.
    pub meaning: &'static str,
    /// The remedy.
    pub remedy: &'static str,
}

/// Returns the index of the message that a line holds. Ignores case: articles and tickets change a
/// quoted line's capitals.
fn place(line: &str) -> Option<usize> {
    let line = line.to_ascii_lowercase();
    let has = |form: &Vec<String>| form.iter().all(|part| line.contains(part));
    MESSAGES.iter().position(|message| message.forms.iter().any(has))
}

/// Returns the known messages in `text`, each once, in the order of their first occurrence.
pub fn explain(text: &str) -> Vec<Explained> {
    let mut found: Vec<(usize, Explained)> = Vec::new();
    for line in text.lines() {
        let Some(index) = place(line) else { continue };
        let message = &MESSAGES[index];
        match found.iter_mut().find(|(known, _)| *known == index) {
            Some((_, explained)) => explained.times += 1,
            None => found.push((
                index,
                Explained {
                    program: &message.program,
                    line: line.trim().into(),
                    times: 1,
                    meaning: &message.meaning,
                    remedy: &message.remedy,
                },
            )),
        }
    }
    found.into_iter().map(|(_, explained)| explained).collect()
}

#[cfg(test)]
mod tests;
