//! Adds the variables, arguments and notes of each mechanism to a plan.

use super::{Accepted, Plan, Refusal, tunable_value};
use crate::broker::PoolPlan;
use crate::machine::Machine;
use crate::program::Program;
use crate::request::{Fork, Mechanism, Request, Shm};
use crate::runtimes::Switch;
use megapage_memory::shared::SHM_VARIABLE;
use megapage_memory::stock::POOL_VARIABLE;
use megapage_memory::{
    CHILDREN_VARIABLE, FORK_VARIABLE, HEAP_VARIABLE, Heap, POPULATE_VARIABLE, RETURN_AFTER_VARIABLE,
    SPARES_VARIABLE,
};

/// Adds `--shm` to a plan: only the preloaded library asks for huge pages for shared memory.
pub(super) fn apply_shm(plan: &mut Plan, request: &Request) -> Result<(), Refusal> {
    // The library's default is not passed to it.
    if request.shm == Shm::Auto {
        return Ok(());
    }
    let shm = request.shm.name();
    if plan.uses(Mechanism::Preload) {
        plan.environment.push((SHM_VARIABLE.into(), shm.into()));
        return Ok(());
    }
    if request.shm == Shm::None {
        return Ok(());
    }
    let reason = plan.considered.iter().find(|it| it.mechanism == Mechanism::Preload);
    let reason = reason.map_or("it is not used", |it| &it.reason);
    let why = format!("--shm {shm} takes the preloaded library: {reason}");
    if request.require {
        return Err(Refusal::Unobtainable(why));
    }
    plan.notes.push(why);
    Ok(())
}

pub(super) fn apply_switch(plan: &mut Plan, switch: &Switch) {
    plan.arguments.extend(switch.arguments.iter().cloned());
    for (name, value) in &switch.environment {
        plan.environment.push(((*name).into(), value.into()));
        plan.notes.push(format!("{name}={value} is inherited by the processes that the program starts"));
    }
}

pub(super) fn apply_preload(
    plan: &mut Plan,
    accepted: &Accepted,
    program: &Program,
    request: &Request,
    machine: &Machine,
) {
    let Ok(library) = &machine.library else { return };
    plan.heap = accepted.heap;
    let mut list = library.clone().into_os_string();
    if let Some(others) = machine.variable("LD_PRELOAD") {
        list.push(":");
        list.push(others);
    }
    plan.environment.push(("LD_PRELOAD".into(), list));
    plan.environment.push((HEAP_VARIABLE.into(), accepted.heap.name().into()));
    if request.heap == Heap::Auto && accepted.heap == Heap::Thp {
        plan.environment.push((SPARES_VARIABLE.into(), "1".into()));
    }
    plan.environment.push((RETURN_AFTER_VARIABLE.into(), request.return_after.variable().into()));
    // Children may enter a container with unknown limits.
    let populate =
        if machine.hugetlb_may_be_refused || machine.several_nodes || request.children { "1" } else { "0" };
    plan.environment.push((POPULATE_VARIABLE.into(), populate.into()));
    plan.environment.extend(machine.filters_variable());
    if request.fork != Fork::Auto {
        plan.environment.push((FORK_VARIABLE.into(), request.fork.name().into()));
    }
    if request.children {
        plan.environment.push((CHILDREN_VARIABLE.into(), "1".into()));
        plan.notes.push(
            "--children: the program's children run with the library too; values are of the program alone"
                .into(),
        );
    }
    if !program.missing.is_empty() {
        plan.notes.push(format!(
            "not found, and so not looked into for fork or another malloc: {}",
            program.missing.join(", ")
        ));
    }
}

/// Names the broker to the preloaded heap. Also names one that has no pages or is not there: it may
/// have some later.
pub(super) fn apply_pool(
    plan: &mut Plan,
    program: &Program,
    request: &Request,
    machine: &Machine,
) -> Result<(), Refusal> {
    let Some(broker) = &machine.broker else { return Ok(()) };
    // Children made by these functions bypass our fork, which gives the child all of the heap.
    let past_us =
        program.forks.iter().find(|import| ["clone", "_Fork", "__libc_fork"].contains(&&*import.symbol));
    let refused = if !plan.uses(Mechanism::Preload) {
        Some("a broker's pages reach a program through the preloaded library alone".to_string())
    } else if let Some(lacking) = &broker.kernel_lacks {
        Some(format!("a broker's pages take {lacking}, which this kernel lacks"))
    } else {
        past_us.map(|import| {
            let (file, symbol) = (import.file.display(), &import.symbol);
            format!("{file} imports {symbol}: a child that is made past fork(2) would lack the heap's shared pages")
        })
    };
    let reason = match (&refused, &broker.ready) {
        (Some(refused), _) => refused.clone(),
        (None, Ok(ready)) => format!("the broker has {ready} ready"),
        (None, Err(why)) => format!("nothing can be had of the broker at present: {why}"),
    };
    if request.require && (refused.is_some() || broker.ready.is_err()) {
        return Err(Refusal::Unobtainable(format!("--pool: {reason}")));
    }
    if refused.is_none() {
        plan.environment.push((POOL_VARIABLE.into(), broker.socket.clone().into()));
        if let Some(import) = program.forks.first() {
            plan.notes.push(format!(
                "--pool: {} imports {}: at its first fork the heap leaves the broker's pages, and a fork while the \
                 program has several threads is refused (ENOMEM)",
                import.file.display(),
                import.symbol
            ));
        }
    }
    plan.pool = Some(PoolPlan {
        socket: broker.socket.display().to_string(),
        used: refused.is_none(),
        reason,
        ready_bytes: broker.ready.as_ref().ok().map(|ready| ready.0),
    });
    Ok(())
}

pub(super) fn apply_tunable(plan: &mut Plan, accepted: &Accepted, machine: &Machine) {
    plan.heap = accepted.heap;
    let setting = format!("glibc.malloc.hugetlb={}", tunable_value(accepted.heap));
    let value = match machine.variable("GLIBC_TUNABLES") {
        Some(others) => format!("{others}:{setting}"),
        None => setting,
    };
    plan.environment.push(("GLIBC_TUNABLES".into(), value.into()));
    plan.notes.push("GLIBC_TUNABLES is inherited by the processes that the program starts".into());
}
