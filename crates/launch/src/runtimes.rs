//! The switches of language runtimes for huge pages: one entry for each runtime, each tested with the real
//! program in `crates/cli/tests/run_runtimes.rs`.

use crate::machine::Machine;
use crate::program::{Program, Runtime};
use crate::request::Heap;
use megapage_units::Bytes;

/// A runtime's switch, thrown.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Switch {
    /// Arguments to put before the program's own.
    pub arguments: Vec<String>,
    /// Variables to set. Processes that the program starts inherit them.
    pub environment: Vec<(&'static str, &'static str)>,
    /// Whether the switch only works together with the preloaded library.
    pub needs_preload: bool,
    /// What it does, in words.
    pub reason: String,
}

/// Memory that a JVM maps from the pool besides its heap: code cache (240 MiB by default), tables of the
/// collector, room for alignment.
const JVM_BESIDES_HEAP: Bytes = Bytes::mib(512);

/// The switch of `runtime` for a heap as asked; the reason where there is none that applies. `arguments` are
/// the user's.
pub fn switch(
    runtime: Runtime,
    program: &Program,
    arguments: &[String],
    heap: Heap,
    machine: &Machine,
) -> Result<Switch, String> {
    match runtime {
        Runtime::Jvm => jvm(program, arguments, heap, machine),
        Runtime::Python => python(heap, machine),
        Runtime::Php => php(heap, machine),
        Runtime::Node => {
            Err("Node.js has a switch for its text alone (--use-largepages), none for its heap".into())
        }
        Runtime::Go => Err("Go has had no switch for huge pages since 1.21.1".into()),
    }
}

/// The JVM reserves its whole heap at start: from the pool with UseLargePages, or as memory advised to be
/// huge with UseTransparentHugePages. Arguments, for the variables JAVA_TOOL_OPTIONS and JDK_JAVA_OPTIONS make
/// it print a line.
fn jvm(program: &Program, arguments: &[String], heap: Heap, machine: &Machine) -> Result<Switch, String> {
    if let Some(own) = arguments
        .iter()
        .find(|argument| argument.contains("UseLargePages") || argument.contains("UseTransparentHugePages"))
    {
        return Err(format!("the arguments choose already: {own}"));
    }
    let name = program.path.file_name().unwrap_or_default();
    if !program.script_arguments.is_empty() {
        return Err("a script starts the JVM".into());
    }
    let large = |size: &str, why: String| Switch {
        arguments: vec!["-XX:+UseLargePages".into(), format!("-XX:LargePageSizeInBytes={size}")],
        reason: why,
        ..Switch::default()
    };
    let needed =
        arguments.iter().rev().find_map(|argument| heap_limit(argument)).map(|it| it + JVM_BESIDES_HEAP);
    let pool = if heap == Heap::Huge1G { machine.pool_1g } else { machine.pool_2m };
    let asks_hugetlb = matches!(heap, Heap::Huge1G | Heap::Huge2M);
    let mut switch = match heap {
        // Too short a pool makes the JVM print a warning and take base pages.
        _ if asks_hugetlb && pool < needed.unwrap_or(Bytes(1)) => transparent(
            machine,
            "-XX:+UseTransparentHugePages, because the pool is too short for the Java heap".into(),
        )?,
        Heap::Huge1G => large("1g", "-XX:+UseLargePages with 1 GiB pages, as asked".into()),
        Heap::Huge2M => large("2m", "-XX:+UseLargePages with 2 MiB pages, as asked".into()),
        Heap::Auto
            if needed.is_some_and(|bytes| machine.pool_2m >= bytes) && !machine.hugetlb_may_be_refused =>
        {
            large("2m", "-XX:+UseLargePages: the pool can hold all of -Xmx".into())
        }
        _ => transparent(machine, "-XX:+UseTransparentHugePages reaches the whole Java heap".into())?,
    };
    // The JDK's other tools hand what follows -J to the JVM.
    if name != "java" {
        switch.arguments = switch.arguments.iter().map(|argument| format!("-J{argument}")).collect();
    }
    Ok(switch)
}

/// The JVM's switch for THP. It prints a warning where they are off.
fn transparent(machine: &Machine, reason: String) -> Result<Switch, String> {
    machine.thp.clone().map_err(|off| format!("the JVM's switch for THP needs them on: {off}"))?;
    let arguments = vec!["-XX:+UseTransparentHugePages".into()];
    Ok(Switch { arguments, reason, ..Switch::default() })
}

/// The heap limit that a JVM argument gives: `-Xmx512m`, `-J-Xmx2g`.
fn heap_limit(argument: &str) -> Option<Bytes> {
    argument.strip_prefix("-J").unwrap_or(argument).strip_prefix("-Xmx")?.parse().ok()
}

/// CPython keeps small objects in arenas of its own (pymalloc), which malloc does not see.
fn python(heap: Heap, machine: &Machine) -> Result<Switch, String> {
    if let Some(value) = machine.variable("PYTHONMALLOC") {
        return Err(format!("PYTHONMALLOC={value} is set: left as it is"));
    }
    if heap == Heap::None {
        return Err("no huge pages are asked for".into());
    }
    Ok(Switch {
        environment: vec![("PYTHONMALLOC", "malloc")],
        needs_preload: true,
        reason: "PYTHONMALLOC=malloc sends Python's objects through the preloaded malloc".into(),
        ..Switch::default()
    })
}

/// PHP's own heap is made of 2 MiB chunks. When told, it maps each from the hugetlb pool, and where that is
/// refused advises it to be huge (zend_alloc.c, zend_mm_mmap).
fn php(heap: Heap, machine: &Machine) -> Result<Switch, String> {
    if let Some(value) = machine.variable("USE_ZEND_ALLOC_HUGE_PAGES") {
        return Err(format!("USE_ZEND_ALLOC_HUGE_PAGES={value} is set: left as it is"));
    }
    let from_pool = machine.pool_2m > Bytes::ZERO;
    let what = match heap {
        Heap::Huge1G => return Err("PHP has no switch for 1 GiB pages".into()),
        Heap::Huge2M if from_pool => "take its heap from the hugetlb pool",
        _ if from_pool => {
            return Err(
                "PHP's switch takes hugetlb pages while the pool has any, and after a fork a child that \
                        finds it empty is killed (--heap 2m overrides)"
                    .into(),
            );
        }
        _ => {
            machine.thp.clone().map_err(|off| format!("PHP's switch needs THP: {off}"))?;
            "advise its heap to be huge"
        }
    };
    Ok(Switch {
        environment: vec![("USE_ZEND_ALLOC_HUGE_PAGES", "1")],
        reason: format!("USE_ZEND_ALLOC_HUGE_PAGES=1 makes PHP {what}"),
        ..Switch::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jvm_heap_limits_are_read() {
        assert_eq!(heap_limit("-Xmx512m"), Some(Bytes::mib(512)));
        assert_eq!(heap_limit("-J-Xmx2g"), Some(Bytes::gib(2)));
        assert_eq!(heap_limit("-Xms2g"), None);
        assert_eq!(heap_limit("-Xmxmuch"), None);
    }
}
