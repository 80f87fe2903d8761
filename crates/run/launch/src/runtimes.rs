//! Switches of language runtimes for huge pages, one entry for each runtime. Each is tested with
//! the real program in `crates/cli/tests/it/run_runtimes.rs`.

use crate::jvm::need::Need;
use crate::jvm::obstacles::{Question, obstacles};
use crate::jvm::options::{Collector, Options};
use crate::jvm::{Java, JavaPlan};
use crate::machine::Machine;
use crate::program::{Program, Runtime};
use crate::request::{Heap, Request};
use megapage_units::{Bytes, PageSize};

/// A runtime's switch that is set.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Switch {
    /// Arguments to put before the program's own.
    pub arguments: Vec<String>,
    /// Variables to set. Processes that the program starts inherit them.
    pub environment: Vec<(&'static str, String)>,
    /// A description of its effect.
    pub reason: String,
    /// The JVM's plan; `None` for other runtimes.
    pub java: Option<JavaPlan>,
    /// The reason why it gives less than was requested.
    pub short: Option<String>,
    /// True if the user's own arguments decide already: nothing is added.
    pub left_alone: bool,
}

/// Returns the switch of `runtime` for a requested run, or the reason why none applies. `arguments`
/// are the user's.
pub fn switch(
    runtime: Runtime,
    program: &Program,
    arguments: &[String],
    request: &Request,
    machine: &Machine,
) -> Result<Switch, String> {
    match runtime {
        Runtime::Jvm => jvm(program, arguments, request, machine),
        Runtime::Python => Err(
            "Python's own allocator is left in place: the preloaded library puts its arenas on huge pages"
                .into(),
        ),
        Runtime::Php => php(request.heap, machine),
        Runtime::Node => {
            Err("Node.js has a switch for its text alone (--use-largepages), none for its heap".into())
        }
        Runtime::Go => Err("Go has had no switch for huge pages since 1.21.1".into()),
    }
}

/// Ways to pass options to the JVM.
enum Way {
    /// For `java`: before its own arguments. It prints no line, and children do not inherit it.
    Arguments,
    /// For the JDK's other tools: they pass options behind -J to the JVM.
    BehindJ,
    /// For a script in Java (`#!/usr/bin/java --source 17`): only the launcher `java` reads this
    /// variable, since Java 9.
    LauncherVariable,
    /// For a script that starts a JVM: every JVM below it reads this variable, prints a line, and
    /// passes it to its children.
    ToolVariable,
}

impl Way {
    fn of(program: &Program, request: &Request, java: &Java) -> Way {
        if request.jvm && program.runtime != Some(Runtime::Jvm) {
            return Way::ToolVariable;
        }
        match program.path.file_name().unwrap_or_default() == "java" {
            _ if !program.script_arguments.is_empty() && java.is_at_least(9) => Way::LauncherVariable,
            _ if !program.script_arguments.is_empty() => Way::ToolVariable,
            true => Way::Arguments,
            false => Way::BehindJ,
        }
    }

    fn apply(&self, words: Vec<String>, machine: &Machine, switch: &mut Switch) {
        let name = match self {
            Way::Arguments => return switch.arguments = words,
            Way::BehindJ => {
                switch.arguments = words.iter().map(|word| format!("-J{word}")).collect();
                return;
            }
            Way::LauncherVariable => "JDK_JAVA_OPTIONS",
            Way::ToolVariable => "JAVA_TOOL_OPTIONS",
        };
        let before = machine.variable(name).map(|value| format!("{value} ")).unwrap_or_default();
        switch.environment.push((name, format!("{before}{}", words.join(" "))));
        switch.reason.push_str(&format!(" (by {name}, of which the JVM prints a line)"));
    }
}

/// Chooses the JVM's switch. The JVM reserves its whole heap at start: from the pool with
/// UseLargePages, or as memory advised to be huge with UseTransparentHugePages.
fn jvm(
    program: &Program,
    arguments: &[String],
    request: &Request,
    machine: &Machine,
) -> Result<Switch, String> {
    let java = program.java.clone().unwrap_or_default();
    if let Some(other) = &java.other_vm {
        return Err(format!("{other} is not HotSpot: it has other switches"));
    }
    let way = Way::of(program, request, &java);
    let is_java = matches!(way, Way::Arguments | Way::LauncherVariable);
    let options = Options::read(&java, &machine.environment, arguments, is_java);
    let around = &machine.surroundings;
    let need = Need::of(&options, &java, around.memory);
    let asks_hugetlb = matches!(request.heap, Heap::Hugetlb1G | Heap::Hugetlb2M);
    let page = if request.heap == Heap::Hugetlb1G { PageSize::HUGE_1G } else { PageSize::HUGE_2M };
    // A heap of default size must not take a quarter of the memory from the pool. A limit that can
    // refuse a page later would kill the JVM.
    let wants_pool = asks_hugetlb
        || request.heap == Heap::Auto
            && need.heap_is_given
            && matches!(way, Way::Arguments | Way::BehindJ)
            && !machine.hugetlb_may_be_refused;
    let looks = wants_pool && options.chosen.is_none() || options.large == Some(true);
    let mut plan = JavaPlan { java, need, page: None, obstacles: Vec::new() };
    if looks {
        let pools = (machine.pool_2m, machine.pool_1g);
        let question = Question { java: &plan.java, options: &options, need: &plan.need, page, pools };
        plan.obstacles = obstacles(&question, around);
    }
    let first = plan.obstacles.first().map(ToString::to_string);
    if let Some(chosen) = options.chosen {
        // The user's own switches stay; their effect is reported nevertheless.
        let reason = format!("the arguments choose already: {chosen}");
        let short = first.filter(|_| asks_hugetlb);
        return Ok(Switch { reason, java: Some(plan), short, left_alone: true, ..Switch::default() });
    }
    let mut switch = Switch::default();
    let words = match (wants_pool, first) {
        (true, None) => {
            let mut words = vec!["-XX:+UseLargePages".to_string()];
            // Before Java 17 this option would only cause a warning that it has no effect.
            if plan.java.is_at_least(17) {
                let size = if page == PageSize::HUGE_1G { "1g" } else { "2m" };
                words.push(format!("-XX:LargePageSizeInBytes={size}"));
            }
            let why = if asks_hugetlb { "as asked" } else { "the pool can hold all of the JVM" };
            switch.reason =
                format!("-XX:+UseLargePages with pages of {page}: {why} ({})", plan.need.describe());
            plan.page = Some(page);
            words
        }
        (wanted, obstacle) => {
            if let Err(off) = &machine.thp {
                return Err(match obstacle {
                    Some(obstacle) => obstacle,
                    // The JVM would print a warning.
                    None => format!("the JVM's switch for THP needs them on: {off}"),
                });
            }
            let is_shared = options.collector == Some(Collector::Z);
            if let Some(setting) = is_shared.then(|| (machine.shared_thp_off)()).flatten() {
                // The switch gets no huge page here, and doubles the JVM's page faults.
                let reason = format!(
                    "ZGC's heap is shared memory, and shmem_enabled is '{setting}'; helps: megapage thp set \
                     shmem_enabled=advise"
                );
                return Ok(Switch { reason, java: Some(plan), left_alone: true, ..Switch::default() });
            }
            switch.reason = match obstacle {
                Some(obstacle) if wanted => {
                    format!("-XX:+UseTransparentHugePages, not pages of the pool: {obstacle}")
                }
                // Shenandoah does not advise regions that it commits later (Java 17 and 25).
                _ if options.collector == Some(Collector::Shenandoah) => {
                    "-XX:+UseTransparentHugePages reaches the heap that Shenandoah starts with (-Xms)".into()
                }
                _ => "-XX:+UseTransparentHugePages reaches the whole Java heap".into(),
            };
            switch.short = plan.obstacles.first().map(ToString::to_string).filter(|_| asks_hugetlb);
            vec!["-XX:+UseTransparentHugePages".to_string()]
        }
    };
    way.apply(words, machine, &mut switch);
    switch.java = Some(plan);
    Ok(switch)
}

/// Chooses PHP's switch. PHP's own heap consists of 2 MiB chunks. With the switch, it maps each
/// from the hugetlb pool. If that is refused, it advises the chunk to be huge (zend_alloc.c,
/// zend_mm_mmap).
fn php(heap: Heap, machine: &Machine) -> Result<Switch, String> {
    if let Some(value) = machine.variable("USE_ZEND_ALLOC_HUGE_PAGES") {
        return Err(format!("USE_ZEND_ALLOC_HUGE_PAGES={value} is set: left as it is"));
    }
    let from_pool = machine.pool_2m > Bytes::ZERO;
    let what = match heap {
        Heap::Hugetlb1G => return Err("PHP has no switch for 1 GiB pages".into()),
        Heap::Hugetlb2M if from_pool => "take its heap from the hugetlb pool",
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
        environment: vec![("USE_ZEND_ALLOC_HUGE_PAGES", "1".into())],
        reason: format!("USE_ZEND_ALLOC_HUGE_PAGES=1 makes PHP {what}"),
        ..Switch::default()
    })
}
