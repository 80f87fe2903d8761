//! Rules for text of any kind, and for documentation that names commands and files.

use crate::finding::Finding;

/// Lines that begin and end a conflict that git could not merge. The line between them may be a
/// heading's underline.
const CONFLICT_MARKERS: [&str; 2] = ["<<<<<<< ", ">>>>>>> "];

/// Finds trailing spaces, carriage returns, a last line without an end, and remains of a merge.
pub fn whitespace(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (number, line) in text.split('\n').enumerate() {
        if line.ends_with('\r') {
            findings.push(Finding::new(path, number + 1, "the line ends in a carriage return"));
        } else if line.ends_with([' ', '\t']) {
            findings.push(Finding::new(path, number + 1, "trailing whitespace"));
        } else if CONFLICT_MARKERS.iter().any(|marker| line.starts_with(marker)) {
            findings.push(Finding::new(path, number + 1, "a merge left its marker here"));
        }
    }
    if !text.is_empty() && !text.ends_with('\n') {
        findings.push(Finding::new(path, text.lines().count(), "no newline at the end of the file"));
    }
    findings
}

/// Finds links of a Markdown file, and paths `crates/....rs` in it, to files that do not exist.
/// `exists` returns true for the path of an existing file, relative to the repository's root.
pub fn links(path: &str, text: &str, exists: impl Fn(&str) -> bool) -> Vec<Finding> {
    let directory = path.rsplit_once('/').map_or("", |(directory, _)| directory);
    let mut findings = Vec::new();
    for (number, line) in text.lines().enumerate() {
        for (at, _) in line.match_indices("](") {
            let rest = &line[at + 2..];
            let target = rest[..rest.find(')').unwrap_or(rest.len())].split('#').next().unwrap_or_default();
            if target.is_empty() || target.contains("://") || target.starts_with("mailto:") {
                continue;
            }
            let full =
                if directory.is_empty() { target.to_string() } else { format!("{directory}/{target}") };
            if !exists(&full) {
                findings.push(Finding::new(
                    path,
                    number + 1,
                    format!("the link's target {full} does not exist"),
                ));
            }
        }
        for (at, _) in line.match_indices("crates/") {
            let is_outside = |it: char| !it.is_ascii_alphanumeric() && !"/_-.".contains(it);
            let file = line[at..].split(is_outside).next().unwrap_or_default().trim_end_matches('.');
            if file.ends_with(".rs") && !exists(file) {
                findings.push(Finding::new(path, number + 1, format!("{file} does not exist")));
            }
        }
    }
    findings
}

/// Finds pages of docs/ that the contents of the book (docs/SUMMARY.md) do not name, or name twice:
/// mdBook ignores the former.
pub fn book<'a>(summary: &str, pages: impl Iterator<Item = &'a str>) -> Vec<Finding> {
    const SUMMARY: &str = "docs/SUMMARY.md";
    let count = |page: &str| summary.matches(&format!("]({page})")).count();
    pages
        .filter(|path| *path != SUMMARY && path.ends_with(".md"))
        .filter_map(|path| path.strip_prefix("docs/"))
        .filter_map(|page| match count(page) {
            1 => None,
            0 => Some(Finding::new(SUMMARY, 1, format!("the page {page} is not in the book"))),
            _ => Some(Finding::new(SUMMARY, 1, format!("the page {page} is in the book more than once"))),
        })
        .collect()
}

/// Returns the subcommands that the `enum Command` of the command line declares, as a user types
/// them.
pub fn subcommands(main_rs: &str) -> Vec<String> {
    main_rs
        .lines()
        .skip_while(|line| !line.starts_with("enum Command"))
        .skip(1)
        .take_while(|line| !line.starts_with('}'))
        .filter_map(|line| line.trim().split_once('(').map(|(name, _)| name))
        .filter(|name| !name.is_empty() && name.chars().all(char::is_alphanumeric))
        .map(str::to_lowercase)
        .collect()
}

/// Returns the targets that a Makefile declares at the start of a line.
pub fn make_targets(makefile: &str) -> Vec<String> {
    makefile
        .lines()
        .filter(|line| !line.starts_with(['\t', '#', ' ', '.']) && !line.contains(":="))
        .filter_map(|line| line.split_once(':').map(|(names, _)| names))
        .flat_map(str::split_whitespace)
        .map(str::to_string)
        .collect()
}

/// Commands against which documents are checked.
pub struct Commands {
    /// The subcommands of `megapage`.
    pub subcommands: Vec<String>,
    /// The targets of `make`.
    pub targets: Vec<String>,
}

impl Commands {
    /// Finds commands in the shell blocks (```` ```sh ````, ```` ```console ````) of a Markdown
    /// file that do not exist.
    pub fn check(&self, path: &str, text: &str) -> Vec<Finding> {
        let mut findings = Vec::new();
        let mut in_shell = false;
        for (number, line) in text.lines().enumerate() {
            if let Some(language) = line.trim_start().strip_prefix("```") {
                in_shell = !in_shell && matches!(language.trim(), "sh" | "console" | "bash" | "shell");
                continue;
            }
            if in_shell && let Some(what) = self.judge(line) {
                findings.push(Finding::new(path, number + 1, what));
            }
        }
        findings
    }

    fn judge(&self, line: &str) -> Option<String> {
        let line = line.trim().trim_start_matches("$ ").trim_start_matches("# ");
        let words: Vec<&str> = line.split_whitespace().skip_while(|word| *word == "sudo").collect();
        let (program, argument) = (*words.first()?, words.get(1).copied().unwrap_or_default());
        let is_option = argument.starts_with('-');
        match program.rsplit('/').next()? {
            "megapage" if !is_option && !self.subcommands.iter().any(|name| name == argument) => {
                Some(format!("megapage has no command '{argument}'"))
            }
            "make"
                if !is_option
                    && !argument.is_empty()
                    && !self.targets.iter().any(|name| name == argument) =>
            {
                Some(format!("the Makefile has no target '{argument}'"))
            }
            "cargo"
                if argument == "xtask"
                    && !matches!(words.get(2), Some(&"tidy" | &"header" | &"abilities" | &"values")) =>
            {
                Some(format!("xtask has no command '{}'", words.get(2).unwrap_or(&"")))
            }
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(findings: Vec<Finding>) -> Vec<String> {
        findings.into_iter().map(|f| f.to_string()).collect()
    }

    #[test]
    fn stray_whitespace_is_caught() {
        assert!(whitespace("a", "x\n\ny\n").is_empty());
        assert!(whitespace("a", "").is_empty());
        assert_eq!(
            lines(whitespace("a", "x \ny\t\nz\r\nw")),
            [
                "a:1: trailing whitespace",
                "a:2: trailing whitespace",
                "a:3: the line ends in a carriage return",
                "a:4: no newline at the end of the file"
            ]
        );
        let merged = CONFLICT_MARKERS.join("HEAD\na\n=======\nb\n") + "side\n";
        assert_eq!(
            lines(whitespace("a", &merged)),
            ["a:1: a merge left its marker here", "a:5: a merge left its marker here"]
        );
    }

    #[test]
    fn a_dead_link_is_caught() {
        let exists = |path: &str| path == "docs/run.md";
        let text = "[a](run.md#x) [b](https://example.org/) [c](#top)\n[d](gone.md)\n";
        assert_eq!(
            lines(links("docs/index.md", text, exists)),
            ["docs/index.md:2: the link's target docs/gone.md does not exist"]
        );
        assert!(links("README.md", "[a](docs/run.md)", exists).is_empty());
        assert_eq!(
            lines(links("a.md", "see `docs/run.md`, crates/a and\n(crates/a/b.rs).", exists)),
            ["a.md:2: crates/a/b.rs does not exist"]
        );
    }

    #[test]
    fn commands_are_read_from_their_sources() {
        let main = "struct A;\n/// The commands.\nenum Command {\n    /// Runs.\n    Run(run::Args),\n    Pool(pool::Args),\n}\nfn f(a: u8) {}\n";
        assert_eq!(subcommands(main), ["run", "pool"]);
        let makefile = "PREFIX := /usr\n.PHONY: test\ntest check: build\n\techo a: b\n";
        assert_eq!(make_targets(makefile), ["test", "check"]);
    }

    #[test]
    fn a_command_that_does_not_exist_is_caught() {
        let commands = Commands { subcommands: vec!["run".to_string()], targets: vec!["test".to_string()] };
        let good = "```sh\nmake test\nmegapage run -- ls\nsudo megapage --help\ncargo xtask tidy\nls\n```\nmake up a story\n";
        assert!(commands.check("README.md", good).is_empty());
        let bad = "```console\n$ megapage fly\n$ sudo make war\n$ cargo xtask launder\n```\n";
        assert_eq!(
            lines(commands.check("README.md", bad)),
            [
                "README.md:2: megapage has no command 'fly'",
                "README.md:3: the Makefile has no target 'war'",
                "README.md:4: xtask has no command 'launder'"
            ]
        );
    }

    #[test]
    fn a_page_that_the_book_lacks_is_found() {
        let pages = [
            "docs/SUMMARY.md",
            "docs/run.md",
            "docs/recipes/go.md",
            "docs/new.md",
            "README.md",
            "docs/x.svg",
        ];
        let summary = "- [run](run.md)\n- [go](recipes/go.md)\n- [again](recipes/go.md)\n";
        let found: Vec<String> = book(summary, pages.into_iter()).into_iter().map(|it| it.what).collect();
        assert_eq!(
            found,
            ["the page recipes/go.md is in the book more than once", "the page new.md is not in the book"]
        );
    }
}
