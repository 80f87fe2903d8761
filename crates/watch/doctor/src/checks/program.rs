//! The program: the mechanisms of `megapage run` that reach it.

use crate::catalog;
use crate::facts::{Facts, PoolState};
use crate::finding::Finding;
use megapage_launch::applications::{Application, Needs};
use megapage_launch::program::{Allocator, Linkage, Privilege, Program, Runtime};

pub(super) fn check(facts: &Facts) -> Vec<Finding> {
    let Some(program) = &facts.program else { return Vec::new() };
    let path = program.executable.display().to_string();
    let mut findings = kind_of_file(program, &path);
    findings.extend(allocation(program, &path));
    if let Some(import) = program.forks.first() {
        findings.push(Finding::new(
            &catalog::PROGRAM_FORKS,
            import.file.display().to_string(),
            format!("imports {}", import.symbol),
        ));
    }
    if !program.missing.is_empty() {
        let missing = program.missing.join(" ");
        findings.push(Finding::new(&catalog::PROGRAM_LIBRARIES_MISSING, path.clone(), missing));
    }
    findings.extend(runtime(facts, program, &path));
    let name = program.executable.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    if let Some(known) = Application::of_program(name) {
        if known.disables_thp {
            findings.push(Finding::new(&catalog::PROGRAM_DISABLES_THP, path.clone(), format!("is {name}")));
        }
        findings.extend(settings(known, &path, name));
    }
    findings
}

/// Returns the program's settings for huge pages, and those to avoid.
fn settings(known: &Application, path: &str, name: &str) -> Option<Finding> {
    let lines = known.lines(&Needs::default());
    let finding = Finding::new(&catalog::PROGRAM_HAS_SETTINGS, path, format!("is {name}"));
    (!lines.is_empty()).then_some(Finding { remedy: lines, ..finding })
}

fn kind_of_file(program: &Program, path: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    if !program.native {
        findings.push(Finding::new(&catalog::PROGRAM_FOREIGN, path, program.machine.clone()));
    }
    if let Some(privilege) = program.privilege {
        let how = match privilege {
            Privilege::SetUser(uid) => format!("set-user-ID to {uid}"),
            Privilege::SetGroup(gid) => format!("set-group-ID to {gid}"),
            Privilege::Capabilities => "file capabilities".into(),
        };
        findings.push(Finding::new(&catalog::PROGRAM_PRIVILEGED, path, how));
    }
    match &program.linkage {
        Linkage::Glibc => {}
        Linkage::Static => findings.push(Finding::new(&catalog::PROGRAM_STATIC, path, "names no loader")),
        Linkage::Musl => {
            findings.push(Finding::new(&catalog::PROGRAM_NOT_GLIBC, path, "loaded by musl's loader"));
        }
        Linkage::OtherLoader(loader) => {
            let loader = format!("loaded by {loader}");
            findings.push(Finding::new(&catalog::PROGRAM_NOT_GLIBC, path, loader));
        }
    }
    findings
}

/// Returns memory that a preloaded malloc would not serve. A library that defines malloc does not
/// count: the preloaded one comes before it.
fn allocation(program: &Program, path: &str) -> Option<Finding> {
    if let Some(import) = &program.private_allocation {
        let file = import.file.display().to_string();
        let symbol = format!("imports {}", import.symbol);
        return Some(Finding::new(&catalog::PROGRAM_OWN_ALLOCATOR, file, symbol));
    }
    (program.allocator == Some(Allocator::InExecutable))
        .then(|| Finding::new(&catalog::PROGRAM_OWN_ALLOCATOR, path, "defines malloc"))
}

fn runtime(facts: &Facts, program: &Program, path: &str) -> Option<Finding> {
    let runtime = program.runtime?;
    let kind = match runtime {
        Runtime::Jvm => &catalog::PROGRAM_JVM,
        Runtime::Go => &catalog::PROGRAM_GO,
        Runtime::Node => &catalog::PROGRAM_NODE,
        Runtime::Python => &catalog::PROGRAM_PYTHON,
        Runtime::Php => &catalog::PROGRAM_PHP,
    };
    let finding = Finding::new(kind, path, format!("{} program", runtime.name()));
    if runtime != Runtime::Jvm {
        return Some(finding);
    }
    // The memory that -XX:+UseLargePages would have to fit into.
    let pool = facts.default_size.and_then(|size| facts.pool(size));
    Some(match pool {
        Some(pool) => match pool.state() {
            PoolState::Available(pages) => {
                let room = pool.page_size.bytes() * pages;
                finding.and("room in the pool for -Xmx and the code cache", room.to_string())
            }
            _ => finding.and("room in the pool for -Xmx and the code cache", "none"),
        },
        None => finding,
    })
}
