//! Memory options of a JVM, from its environment variables, argument files and arguments.

use crate::jvm::Java;
use megapage_units::Bytes;
use std::collections::BTreeMap;

/// Garbage collectors that differ in the pages that they take from the pools beside the heap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Collector {
    /// `-XX:+UseSerialGC`, and Epsilon, which does not collect.
    Serial,
    /// `-XX:+UseParallelGC`.
    Parallel,
    /// `-XX:+UseG1GC`, and any unknown one.
    G1,
    /// `-XX:+UseShenandoahGC`.
    Shenandoah,
    /// `-XX:+UseZGC`.
    Z,
}

/// The JVM's options; the last value of each counts.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Options {
    /// `-Xmx` or `-XX:MaxHeapSize`.
    pub max_heap: Option<Bytes>,
    /// `-XX:MaxRAM`.
    pub max_ram: Option<Bytes>,
    /// `-XX:MaxRAMPercentage`, or the value from `-XX:MaxRAMFraction`; `None`: 25.
    pub max_ram_percent: Option<f64>,
    /// `-XX:ReservedCodeCacheSize`.
    pub code_cache: Option<Bytes>,
    /// `-XX:-TieredCompilation`: the code cache is smaller.
    pub untiered: bool,
    /// The collector, if one is named.
    pub collector: Option<Collector>,
    /// `-XX:CompressedClassSpaceSize`.
    pub class_space: Option<Bytes>,
    /// `-XX:+UseLargePagesInMetaspace` (Java 8 to 16): the class space comes from the pool as well.
    pub class_space_large: bool,
    /// `-XX:+UseSHM`: System V segments in place of mappings (until Java 21).
    pub shm: bool,
    /// `-XX:+UseLargePages`, if the user has set it.
    pub large: Option<bool>,
    /// The first option that already decides about large pages.
    pub chosen: Option<String>,
}

/// Options of the launcher whose value is the next word.
const WITH_VALUE: &str = "-cp -classpath --class-path -p --module-path --upgrade-module-path --add-modules \
    --enable-native-access --add-reads --add-exports --add-opens --limit-modules --patch-module \
    --source";
/// Words that end the options: the word behind them names the program.
const PROGRAM_FOLLOWS: [&str; 3] = ["-jar", "-m", "--module"];

impl Options {
    /// Reads the options in the JVM's order: JAVA_TOOL_OPTIONS, JDK_JAVA_OPTIONS (the launcher
    /// `java` since Java 9), the command line, _JAVA_OPTIONS. Later values replace earlier ones.
    /// `is_java`: the command is `java`. The JDK's other tools take the JVM's options behind `-J`,
    /// and scripts take none.
    pub fn read(
        java: &Java,
        environment: &BTreeMap<String, String>,
        arguments: &[String],
        is_java: bool,
    ) -> Options {
        let mut options = Options::default();
        let mut variable = |name: &str| {
            for word in environment.get(name).map(|text| words(text)).unwrap_or_default() {
                options.take(&word);
            }
        };
        variable("JAVA_TOOL_OPTIONS");
        if is_java && java.is_at_least(9) {
            variable("JDK_JAVA_OPTIONS");
        }
        if is_java {
            for word in launcher_words(java, arguments) {
                options.take(&word);
            }
        } else {
            arguments.iter().filter_map(|word| word.strip_prefix("-J")).for_each(|word| options.take(word));
        }
        for word in environment.get("_JAVA_OPTIONS").map(|text| words(text)).unwrap_or_default() {
            options.take(&word);
        }
        options
    }

    fn take(&mut self, word: &str) {
        // The launcher itself ignores the prefix -J.
        let word = word.strip_prefix("-J").unwrap_or(word);
        let size = |text: &str| text.parse::<Bytes>().ok();
        if let Some(number) = word.strip_prefix("-Xmx") {
            self.max_heap = size(number).or(self.max_heap);
            return;
        }
        let Some(flag) = word.strip_prefix("-XX:") else { return };
        if let Some((name, value)) = flag.split_once('=') {
            match name {
                "MaxHeapSize" => self.max_heap = size(value).or(self.max_heap),
                "MaxRAM" => self.max_ram = size(value).or(self.max_ram),
                "MaxRAMPercentage" => {
                    self.max_ram_percent = value.parse().ok().filter(|it| (0.0..=100.0).contains(it));
                }
                "MaxRAMFraction" => {
                    let fraction = value.parse::<f64>().ok().filter(|it| *it >= 1.0);
                    self.max_ram_percent = fraction.map(|it| 100.0 / it);
                }
                "ReservedCodeCacheSize" => self.code_cache = size(value).or(self.code_cache),
                "CompressedClassSpaceSize" => self.class_space = size(value).or(self.class_space),
                "LargePageSizeInBytes" => drop(self.chosen.get_or_insert_with(|| word.into())),
                _ => {}
            }
            return;
        }
        let (on, name) = match flag.strip_prefix('+') {
            Some(name) => (true, name),
            None => (false, flag.strip_prefix('-').unwrap_or(flag)),
        };
        match name {
            "UseLargePages" => self.large = Some(on),
            "UseTransparentHugePages" if on => self.large = Some(false),
            "UseSHM" => self.shm = on,
            "UseLargePagesInMetaspace" => self.class_space_large = on,
            "TieredCompilation" => self.untiered = !on,
            "UseSerialGC" | "UseEpsilonGC" if on => self.collector = Some(Collector::Serial),
            "UseParallelGC" | "UseParallelOldGC" if on => self.collector = Some(Collector::Parallel),
            "UseG1GC" if on => self.collector = Some(Collector::G1),
            "UseShenandoahGC" if on => self.collector = Some(Collector::Shenandoah),
            "UseZGC" if on => self.collector = Some(Collector::Z),
            _ => {}
        }
        if ["UseLargePages", "UseTransparentHugePages", "UseSHM", "UseHugeTLBFS"].contains(&name) {
            self.chosen.get_or_insert_with(|| word.into());
        }
    }
}

/// Returns the words that the launcher reads as its own and the JVM's options: those before the
/// class, file or module that it runs. Argument files are replaced by their words.
fn launcher_words(java: &Java, arguments: &[String]) -> Vec<String> {
    let mut all = Vec::new();
    for argument in arguments {
        match argument.strip_prefix('@').and_then(|name| java.argument_files.get(name)) {
            Some(text) if java.is_at_least(9) => all.extend(words(&without_comments(text))),
            _ => all.push(argument.clone()),
        }
    }
    let mut taken = Vec::new();
    let mut rest = all.into_iter();
    while let Some(word) = rest.next() {
        if !word.starts_with('-') || PROGRAM_FOLLOWS.contains(&word.as_str()) {
            break;
        }
        if WITH_VALUE.split(' ').any(|option| option == word) {
            rest.next();
        }
        taken.push(word);
    }
    taken
}

fn without_comments(text: &str) -> String {
    text.lines().map(|line| line.split('#').next().unwrap_or_default()).collect::<Vec<_>>().join("\n")
}

/// Splits a text at blanks; quotes keep blanks.
fn words(text: &str) -> Vec<String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    for c in text.chars() {
        match (quote, c) {
            (Some(open), c) if c == open => quote = None,
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, c) if c.is_whitespace() => words.extend(word.take()),
            (_, c) => word.get_or_insert_default().push(c),
        }
    }
    words.extend(word);
    words
}

#[cfg(test)]
mod tests;
