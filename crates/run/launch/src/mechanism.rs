//! Chooses the mechanisms of a run, with the reason for each that it uses or not. Pure: facts in, a
//! plan out.

mod apply;

use self::apply::{apply_pool, apply_preload, apply_shm, apply_switch, apply_tunable};
use crate::broker::PoolPlan;
use crate::jvm::JavaPlan;
use crate::jvm::obstacles::Obstacle;
use crate::machine::Machine;
use crate::program::{Allocator, Linkage, Privilege, Program, Runtime};
use crate::request::{Fork, Heap, Mechanism, Request};
use crate::runtimes::{self, Switch};
use crate::versions;
use megapage_units::Bytes;
use serde::Serialize;
use std::ffi::OsString;
use thiserror::Error;

/// One mechanism with its verdict.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Considered {
    /// The mechanism.
    pub mechanism: Mechanism,
    /// True if the run uses it.
    pub used: bool,
    /// The reason for that.
    pub reason: String,
}

/// The plan of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Plan {
    /// Every mechanism, with its reason.
    pub considered: Vec<Considered>,
    /// The backing that the mechanism is to use: the requested one, or less if that is not safe.
    pub heap: Heap,
    /// The result of `--pool`, if it was requested.
    pub pool: Option<PoolPlan>,
    /// Variables to set.
    pub environment: Vec<(String, OsString)>,
    /// Arguments to put before the program's own arguments (and after a script's).
    pub arguments: Vec<String>,
    /// Further notes for the reader of the report.
    pub notes: Vec<String>,
    /// Facts about the JVM; `None` if there is none.
    pub java: Option<JavaPlan>,
}

impl Plan {
    /// Returns a plan that sets nothing.
    pub fn of(considered: Vec<Considered>, heap: Heap) -> Plan {
        Plan { considered, heap, ..Plan::default() }
    }

    /// Returns true if `mechanism` is in use.
    pub fn uses(&self, mechanism: Mechanism) -> bool {
        self.considered.iter().any(|considered| considered.used && considered.mechanism == mechanism)
    }

    /// Returns the mechanisms in use.
    pub fn used(&self) -> Vec<Mechanism> {
        self.considered.iter().filter(|considered| considered.used).map(|it| it.mechanism).collect()
    }
}

/// Reasons not to start a run.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The requested mechanism cannot reach this program.
    #[error("--mechanism {mechanism}: {reason}")]
    NotApplicable {
        /// The mechanism.
        mechanism: Mechanism,
        /// The reason.
        reason: String,
    },
    /// `--fork` with pages that make forks expensive.
    #[error(
        "--fork {} and --heap {}: a hugetlb page is copied whole by the first write after a fork, and where the pool \
         has none left the child is killed; leave --heap out, or choose thp",
        fork.name(),
        heap.name()
    )]
    HugetlbForks {
        /// The purpose of the program's forks.
        fork: Fork,
        /// The requested heap.
        heap: Heap,
    },
    /// `--fork` with `--pool`.
    #[error(
        "--fork {} and --pool: at its first fork the heap leaves the broker's pages, and a fork of several threads is \
         refused; leave one of the two out",
        .0.name()
    )]
    PoolForks(Fork),
    /// `--thp advised` on a kernel without it.
    #[error("--thp advised: this kernel lacks {0}")]
    ThpAdvised(String),
    /// A library of --text-libs cannot be examined.
    #[error("--text-libs: {0}")]
    TextLibrary(String),
    /// With `--require`: the request cannot be met.
    #[error("--require: {0}")]
    Unobtainable(String),
}

/// A mechanism that applies: the reason, and the heap that it is to use.
struct Accepted {
    reason: String,
    heap: Heap,
}

/// Chooses the mechanisms. `request.mechanism` overrides the choice; with `request.require`, a
/// known impossibility is a refusal.
pub fn choose(program: &Program, request: &Request, machine: &Machine) -> Result<Plan, Refusal> {
    if request.fork != Fork::Auto && machine.broker.is_some() {
        return Err(Refusal::PoolForks(request.fork));
    }
    let mut plan = choose_mechanisms(program, request, machine)?;
    apply_pool(&mut plan, program, request, machine)?;
    apply_shm(&mut plan, request)?;
    Ok(plan)
}

fn choose_mechanisms(program: &Program, request: &Request, machine: &Machine) -> Result<Plan, Refusal> {
    // A program that forks gets THP: their page tables are as small, and a write copies only 4 KiB.
    let forking = Request {
        heap: match (request.fork, request.heap) {
            (Fork::Auto, heap) | (_, heap @ (Heap::Thp | Heap::None)) => heap,
            (_, Heap::Auto) => Heap::Thp,
            (fork, heap @ (Heap::Hugetlb1G | Heap::Hugetlb2M)) => {
                return Err(Refusal::HugetlbForks { fork, heap });
            }
        },
        ..request.clone()
    };
    let request = &forking;
    if request.heap == Heap::None && request.mechanism.is_none() {
        return Ok(idle("--heap none asks for nothing"));
    }
    if request.require {
        unobtainable(request.heap, machine).map_or(Ok(()), |why| Err(Refusal::Unobtainable(why)))?;
    }
    let user_arguments: Vec<String> =
        request.arguments.iter().map(|argument| argument.to_string_lossy().into_owned()).collect();
    let preload = preload(program, request.heap, machine);
    let tunable = tunable(program, request.heap, machine);
    let outside = outside(program, request.heap, machine);
    let runtime = if request.jvm { Some(Runtime::Jvm) } else { program.runtime };
    let switch = match (runtime, program.privilege) {
        (None, _) => Err("no language runtime with a switch is recognised".to_string()),
        (_, Some(privilege)) => Err(raised(privilege)),
        (Some(runtime), None) => runtimes::switch(runtime, program, &user_arguments, request, machine),
    };
    let java = switch.as_ref().ok().and_then(|switch| switch.java.clone());
    let short = switch.as_ref().ok().and_then(|switch| switch.short.clone());
    if let (true, Some(short)) = (request.require, &short) {
        return Err(Refusal::Unobtainable(short.clone()));
    }
    let switch = switch.and_then(|switch| if switch.left_alone { Err(switch.reason) } else { Ok(switch) });

    let mut wanted: Vec<Mechanism> = match request.mechanism {
        Some(mechanism) => vec![mechanism],
        None => automatic(program, request.heap, machine, &switch, &preload, &tunable, &outside),
    };

    // The preloaded heap repairs itself; the launcher repairs other heaps.
    let repairs_itself = wanted.contains(&Mechanism::Preload);
    let unrepaired = request.fork != Fork::Auto && !repairs_itself && !wanted.contains(&Mechanism::Outside);
    if unrepaired && outside.is_ok() {
        wanted.push(Mechanism::Outside);
    }

    let mut plan = Plan::of(Vec::new(), request.heap);
    for mechanism in Mechanism::ALL {
        let verdict: Result<String, String> = match mechanism {
            Mechanism::Runtime => switch.as_ref().map(|it| it.reason.clone()).map_err(Clone::clone),
            Mechanism::Preload => preload.as_ref().map(|it| it.reason.clone()).map_err(Clone::clone),
            Mechanism::Tunable => tunable.as_ref().map(|it| it.reason.clone()).map_err(Clone::clone),
            Mechanism::Outside => outside.as_ref().map(|it| it.reason.clone()).map_err(Clone::clone),
        };
        let (used, reason) = match verdict {
            Ok(reason) if wanted.contains(&mechanism) => (true, reason),
            Ok(_) => (false, not_needed(request, &wanted)),
            Err(reason) if request.mechanism == Some(mechanism) => {
                return Err(Refusal::NotApplicable { mechanism, reason });
            }
            Err(reason) => (false, reason),
        };
        plan.considered.push(Considered { mechanism, used, reason });
    }
    // The JVM's own switches are in effect without a requested mechanism, or with `runtime`.
    // Another requested mechanism does not touch them.
    let by_itself = request.mechanism.is_none_or(|it| it == Mechanism::Runtime);
    if let Some(java) = java.filter(|_| by_itself) {
        if java.page.is_none() {
            let say = |it: &Obstacle| format!("large pages of the JVM: {it}");
            plan.notes.extend(java.obstacles.iter().map(say));
        }
        plan.java = Some(java);
    }
    if plan.used().is_empty() && plan.java.is_none() {
        plan.notes.push("no mechanism applies: the program runs as it would without megapage".into());
        if request.require {
            let reasons: Vec<String> =
                plan.considered.iter().map(|it| format!("{}: {}", it.mechanism, it.reason)).collect();
            return Err(Refusal::Unobtainable(format!("no mechanism applies ({})", reasons.join("; "))));
        }
        return Ok(plan);
    }
    if let (true, Err(why)) = (unrepaired, &outside) {
        let note = format!("--fork {}: nothing repairs what forks split: {why}", request.fork.name());
        if request.require {
            return Err(Refusal::Unobtainable(note));
        }
        plan.notes.push(note);
    }
    if let (true, Ok(switch)) = (plan.uses(Mechanism::Runtime), &switch) {
        apply_switch(&mut plan, switch);
    }
    if let (true, Ok(accepted)) = (plan.uses(Mechanism::Preload), &preload) {
        apply_preload(&mut plan, accepted, program, request, machine);
    }
    if let (true, Ok(accepted)) = (plan.uses(Mechanism::Tunable), &tunable) {
        apply_tunable(&mut plan, accepted, machine);
    }
    Ok(plan)
}

fn idle(reason: &str) -> Plan {
    let rejected = |mechanism| Considered { mechanism, used: false, reason: reason.into() };
    Plan::of(Mechanism::ALL.map(rejected).to_vec(), Heap::None)
}

fn not_needed(request: &Request, wanted: &[Mechanism]) -> String {
    let names: Vec<&str> = wanted.iter().map(|mechanism| mechanism.name()).collect();
    match request.mechanism {
        Some(_) => format!("--mechanism {} was asked", names[0]),
        None => format!("not needed besides {}", names.join(" and ")),
    }
}

/// Chooses if no mechanism is requested: the runtime's own switch, else our allocator, else
/// glibc's, else promotion from outside. Promotion from outside is added if it reaches memory that
/// the others cannot.
fn automatic(
    program: &Program,
    heap: Heap,
    machine: &Machine,
    switch: &Result<Switch, String>,
    preload: &Result<Accepted, String>,
    tunable: &Result<Accepted, String>,
    outside: &Result<Accepted, String>,
) -> Vec<Mechanism> {
    let mut wanted = Vec::new();
    if switch.is_ok() {
        wanted.push(Mechanism::Runtime);
    } else if preload.is_ok() {
        wanted.push(Mechanism::Preload);
    } else if tunable.is_ok() {
        wanted.push(Mechanism::Tunable);
    }
    // These runtimes map their heaps themselves, without malloc. If the library collapses such
    // memory from inside, a second collapse from outside would double the time in the kernel. A
    // collapse works even if the settings say never.
    let inside = wanted.contains(&Mechanism::Preload) && machine.collapses_own_mappings;
    let maps_itself =
        matches!(program.runtime, Some(Runtime::Node | Runtime::Php)) && switch.is_err() && !inside;
    let thp_alone = machine.thp.is_err() && (heap == Heap::Thp || machine.pool_2m == Bytes::ZERO);
    if outside.is_ok() && (wanted.is_empty() || maps_itself || thp_alone) {
        wanted.push(Mechanism::Outside);
    }
    wanted
}

pub(crate) fn raised(privilege: Privilege) -> String {
    let what = match privilege {
        Privilege::SetUser(user) => format!("it is set-user-ID to user {user}"),
        Privilege::SetGroup(group) => format!("it is set-group-ID to group {group}"),
        Privilege::Capabilities => "it carries file capabilities".into(),
    };
    format!("{what}, and nothing that the caller sets may reach such a program (AT_SECURE)")
}

/// Returns the reason why no library of ours can be preloaded into `program`, as an error.
pub(crate) fn preloadable(program: &Program, machine: &Machine) -> Result<(), String> {
    if let Some(privilege) = program.privilege {
        return Err(raised(privilege));
    }
    if !program.native {
        return Err(format!("a program for {} cannot load this machine's library", program.machine));
    }
    match &program.linkage {
        Linkage::Static => return Err("it is statically linked: no loader, nothing to preload".into()),
        Linkage::Musl => return Err("it uses musl; the library is made for glibc".into()),
        Linkage::OtherLoader(loader) => return Err(format!("its loader {loader} is not glibc's")),
        Linkage::Glibc => {}
    }
    if let Some(lacking) = versions::lacking(&machine.needed, &program.offered) {
        return Err(lacking);
    }
    program.sanitizer.map_or(Ok(()), |sanitizer| {
        Err(format!(
            "it was built with a sanitizer ({sanitizer}), which wants its own malloc and to be loaded first"
        ))
    })
}

fn preload(program: &Program, heap: Heap, machine: &Machine) -> Result<Accepted, String> {
    machine.library.clone()?;
    preloadable(program, machine)?;
    match program.runtime {
        Some(Runtime::Go) => return Err("Go does not take its heap from malloc".into()),
        Some(Runtime::Jvm) => return Err("the Java heap does not come from malloc".into()),
        _ => {}
    }
    if program.allocator == Some(Allocator::InExecutable) {
        return Err("it defines malloc itself, which comes before any preloaded one".into());
    }
    if let Some(import) = &program.private_allocation {
        return Err(format!(
            "{} imports {}: memory of two allocators would mix",
            import.file.display(),
            import.symbol
        ));
    }
    let replaces = match &program.allocator {
        Some(Allocator::Library(library)) => format!(", in place of {library}'s"),
        _ => String::new(),
    };
    match (heap, program.forks.first()) {
        // After a fork, a write to a page needs a second page; an empty pool then kills the child.
        (Heap::Auto, Some(import)) => Ok(Accepted {
            reason: format!(
                "libmegapage.so provides malloc{replaces}; with THP, because {} imports {}: after a fork, a \
                 child that finds the hugetlb pool empty is killed (--heap 2m overrides)",
                import.file.display(),
                import.symbol
            ),
            heap: Heap::Thp,
        }),
        _ => Ok(Accepted { reason: format!("libmegapage.so provides malloc{replaces}"), heap }),
    }
}

fn tunable(program: &Program, heap: Heap, machine: &Machine) -> Result<Accepted, String> {
    const NAME: &str = "glibc.malloc.hugetlb";
    if let Some(privilege) = program.privilege {
        return Err(raised(privilege));
    }
    if !program.native {
        return Err(format!("a program for {}: its C library is not looked into", program.machine));
    }
    if !program.heap_tunable {
        return Err(format!("its C library has no tunable {NAME} (glibc since 2.35)"));
    }
    if let Some(Runtime::Go | Runtime::Jvm) = program.runtime {
        return Err("its heap does not come from malloc".into());
    }
    if program.allocator.is_some() {
        return Err("it brings its own malloc, which does not know glibc's tunables".into());
    }
    if heap == Heap::None {
        return Err("--heap none asks for nothing".into());
    }
    if machine.variable("GLIBC_TUNABLES").is_some_and(|value| value.contains(NAME)) {
        return Err(format!("GLIBC_TUNABLES sets {NAME} already: left as it is"));
    }
    let forks = !program.forks.is_empty();
    let hugetlb_is_safe = machine.pool_2m > Bytes::ZERO && !forks && !machine.hugetlb_may_be_refused;
    let heap = match heap {
        Heap::Auto if machine.thp.is_err() && hugetlb_is_safe => Heap::Hugetlb2M,
        Heap::Auto => Heap::Thp,
        other => other,
    };
    let what = match heap {
        Heap::Thp => "THP for the main heap and large blocks",
        _ => "hugetlb pages, and base pages without a word once the pool is dry",
    };
    Ok(Accepted { reason: format!("{NAME}={}: {what}", tunable_value(heap)), heap })
}

fn tunable_value(heap: Heap) -> &'static str {
    match heap {
        Heap::Hugetlb1G => "1073741824",
        Heap::Hugetlb2M => "2",
        _ => "1",
    }
}

fn outside(program: &Program, heap: Heap, machine: &Machine) -> Result<Accepted, String> {
    if matches!(heap, Heap::Hugetlb1G | Heap::Hugetlb2M) {
        return Err("promotion makes transparent huge pages, not hugetlb pages".into());
    }
    if heap == Heap::None {
        return Err("--heap none asks for nothing".into());
    }
    if let Some(lacks) = &machine.promotion_lacks {
        return Err(lacks.clone());
    }
    if machine.collapse_off {
        return Err("prctl(PR_SET_THP_DISABLE) is in force, and the program inherits it".into());
    }
    if program.privilege.is_some() && !machine.may_trace_others {
        return Err("the program changes its user: promotion then needs CAP_SYS_PTRACE".into());
    }
    Ok(Accepted {
        reason: "the launcher promotes anonymous memory with process_madvise(MADV_COLLAPSE)".into(),
        heap: Heap::Thp,
    })
}

/// Returns the reason why this machine cannot give `heap` at present to any program; `None` if it
/// can.
fn unobtainable(heap: Heap, machine: &Machine) -> Option<String> {
    let empty = |size: &str| {
        format!("the pool of {size} pages has none available: megapage pool set {size}=N makes some")
    };
    match heap {
        Heap::Hugetlb1G if machine.pool_1g == Bytes::ZERO => Some(empty("1g")),
        Heap::Hugetlb2M if machine.pool_2m == Bytes::ZERO => Some(empty("2m")),
        Heap::Thp => {
            machine.thp.clone().err().filter(|_| machine.promotion_lacks.is_some() || machine.collapse_off)
        }
        Heap::Auto if machine.pool_2m == Bytes::ZERO && machine.pool_1g == Bytes::ZERO => {
            unobtainable(Heap::Thp, machine)
                .map(|off| format!("{off}, and the hugetlb pools have no page available"))
        }
        _ => None,
    }
}
