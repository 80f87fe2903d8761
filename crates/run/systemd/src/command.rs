//! Command lines of ExecStart= (systemd.service(5), "COMMAND LINES").

use crate::syntax::{Word, words};

/// One command of ExecStart= as written: with its specifiers, variables and quotes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExecCommand {
    /// The special prefixes except `@`: `-`, `:`, `+`, `!`, `!!`, `|`.
    pub prefixes: String,
    /// With the prefix `@`: the program's `argv[0]`, as written.
    pub argv0: Option<String>,
    /// The program as written, with its quotes.
    pub written: String,
    /// The program without quotes.
    pub program: String,
    /// The arguments as written, with the white space before them.
    pub rest: String,
}

/// Returns the commands of one value: an unquoted word `;` separates them. The error says what is
/// wrong.
pub fn commands(value: &str) -> Result<Vec<ExecCommand>, String> {
    let words = words(value).ok_or("a quote of ExecStart= is not closed")?;
    let mut found = Vec::new();
    for piece in words.split(|word| word.text == ";" && !word.quoted) {
        if let Some(last) = piece.last() {
            found.push(command(value, piece, last.end)?);
        }
    }
    Ok(found)
}

fn command(value: &str, words: &[Word], end: usize) -> Result<ExecCommand, String> {
    let first = &words[0];
    let written = &value[first.start..first.end];
    let is_prefix = |c: char| "@-:+!|".contains(c);
    let program = written.trim_start_matches(is_prefix);
    let marks = &written[..written.len() - program.len()];
    let text = first.text.trim_start_matches(is_prefix);
    if text.is_empty() {
        return Err("an ExecStart= names no program".into());
    }
    if first.text.len() - text.len() != marks.len() {
        return Err(format!("ExecStart={written}: a prefix stands within quotes"));
    }
    let (argv0, behind) = match (marks.contains('@'), words.get(1)) {
        (false, _) => (None, first.end),
        (true, Some(word)) => (Some(value[word.start..word.end].to_string()), word.end),
        (true, None) => return Err(format!("ExecStart={written}: the prefix @ takes a second word")),
    };
    Ok(ExecCommand {
        prefixes: marks.replace('@', ""),
        argv0,
        written: program.into(),
        program: text.into(),
        rest: value[behind..end].into(),
    })
}

/// Returns the line that starts the same command by the launcher: prefixes, `launcher`, command.
pub fn rewritten(command: &ExecCommand, launcher: &str) -> String {
    let argv0 = command.argv0.as_ref().map(|name| format!(" --argv0 {name}")).unwrap_or_default();
    // systemd reads the bare word `;` as a separator of two commands.
    let program = if command.written == ";" { "\\;" } else { &command.written };
    format!("{}{launcher}{argv0} -- {program}{}", command.prefixes, command.rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_specifiers_and_variables_are_kept() {
        let one = |value: &str| commands(value).unwrap().remove(0);
        let through = |value: &str| rewritten(&one(value), "/l run");
        assert_eq!(through("/bin/a %i $B \"c d\""), "/l run -- /bin/a %i $B \"c d\"");
        assert_eq!(through("-/bin/a"), "-/l run -- /bin/a");
        assert_eq!(through("!!:/bin/a  x"), "!!:/l run -- /bin/a  x");
        assert_eq!(through("@/bin/a \"my name\" x"), "/l run --argv0 \"my name\" -- /bin/a x");
        assert_eq!(through("-@/bin/a a"), "-/l run --argv0 a -- /bin/a");
        assert_eq!(through("\"/opt/a b\" x"), "/l run -- \"/opt/a b\" x");
        assert_eq!(one("\"/opt/a b\" x").program, "/opt/a b");
        assert_eq!(through("-; x"), "-/l run -- \\; x");
    }

    #[test]
    fn several_commands_stand_in_one_value() {
        let found = commands("/bin/a x ; -/bin/b \\; y ';' ; ").unwrap();
        assert_eq!(found.len(), 2);
        assert_eq!((found[0].rest.as_str(), found[1].rest.as_str()), (" x", " \\; y ';'"));
        assert_eq!(commands("").unwrap(), []);
    }

    #[test]
    fn what_systemd_would_refuse_is_refused() {
        for (value, why) in
            [("@/bin/a", "second word"), ("-", "no program"), ("'a", "not closed"), ("\"-/a\"", "quotes")]
        {
            assert!(commands(value).unwrap_err().contains(why), "{value}");
        }
    }
}
