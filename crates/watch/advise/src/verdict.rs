//! The verdict: a pure function of facts.

use crate::applications::{Own, own};
use crate::{Advice, Attach, Facts, Gain, How, Memory, PageKind, Verdict};
use megapage_launch::promoter::LEAST_PRESENT;
use megapage_launch::request::{Heap, Mechanism};
use megapage_observe::cost::probe::{is_promotable, uses_shared};
use megapage_snapshot::{AccessClass, CostSource, Leaf, MappingKind, PAGES, Process, Region};
use megapage_units::shown::shell_word;
use megapage_units::{BASE_PAGE, Bytes, Pid};

/// Least gain that is worth a change: 3 %.
pub const WORTH_IT: f64 = 1.03;
/// Share of private memory on huge pages at which little is left to do.
const MOSTLY_HUGE: f64 = 0.9;

/// Judges a process by the facts.
pub fn judge(facts: &Facts) -> Advice {
    let process = &facts.process;
    let mut memory = of_group(facts);
    memory.zeros = facts.zero_share.map(|share| Bytes((share * memory.huge.0 as f64) as u64));
    let judged = facts.judged.as_ref().ok();
    let (verdict, mut why) = decide(facts, &memory);
    let gain = match verdict {
        Verdict::Unknown => None,
        _ => judged.map(|judged| judged.gain).or_else(|| bounded(&memory, facts)),
    };
    if let Some(judged) = judged
        && verdict != Verdict::AlreadyHuge
    {
        why.extend(explain(judged));
    }
    if facts.ended {
        let time = facts.observed.as_secs_f64();
        why.push(format!(
            "it has ended, after {time:.1} s of observation: this is said of another run of it"
        ));
    }
    let wanted = matches!(verdict, Verdict::UseHugePages | Verdict::TryIt);
    let kind = if wanted { kind(facts, &memory) } else { PageKind::None };
    let own = own(&process.name, &memory, facts.thp_always || process.thp_disabled);
    // A process that is not judged may still have a setting.
    let by_shared = uses_shared(process);
    let offered = wanted || (verdict == Verdict::Unknown && memory.shared > memory.promotable);
    if by_shared && let Some(shared) = &facts.shared.memory {
        why.extend(shared.reasons.iter().cloned());
    }
    let mut risks = if wanted { risks(facts, &memory) } else { Vec::new() };
    if let (true, Some(risk)) = (wanted, own.as_ref().and_then(|own| own.risk)) {
        risks.push(risk.into());
    }
    let bloat = memory.bloat().map(|bloat| bloat_is_taken_back(process.id.pid, bloat));
    Advice {
        pid: process.id.pid,
        name: process.name.clone(),
        others: facts.shared.others.iter().map(|other| other.id.pid).collect(),
        observed: facts.observed,
        ended: facts.ended,
        verdict,
        recommended: verdict == Verdict::UseHugePages,
        gain,
        translation: judged.map(|judged| judged.cost),
        kind,
        how: match () {
            () if wanted => how(facts, &memory, own),
            () if offered && by_shared => shared_ways(facts, &memory, own),
            () if offered => own.and_then(|own| own.how).into_iter().collect(),
            () if verdict == Verdict::AlreadyHuge => bloat.into_iter().flatten().collect(),
            () => Vec::new(),
        },
        memory,
        risks,
        why,
        estimate: judged.and_then(|judged| judged.estimate.clone()),
        trial: judged.and_then(|judged| judged.trial.clone()),
    }
}

fn decide(facts: &Facts, memory: &Memory) -> (Verdict, Vec<String>) {
    let by_shared = uses_shared(&facts.process);
    let (kind, huge, all) = match by_shared {
        true => ("shared", memory.shared_huge, memory.shared),
        false => ("private", memory.huge, memory.promotable + memory.huge),
    };
    if all > Bytes::ZERO && huge.0 as f64 / all.0 as f64 >= MOSTLY_HUGE {
        let what = format!("{huge} of its {all} of {kind} memory is on huge pages");
        return (Verdict::AlreadyHuge, vec![what]);
    }
    if by_shared
        && memory.shared > facts.reach
        && !facts.judged.as_ref().is_ok_and(|it| it.estimate.is_some())
    {
        let why = facts.judged.as_ref().err().map_or("it was not sampled", String::as_str);
        let what = format!("{} of shared memory is what it uses most: {why}", memory.shared);
        return (Verdict::Unknown, vec![what]);
    }
    let useful = if by_shared { memory.shared } else { memory.promotable };
    if useful <= facts.reach {
        let what = format!(
            "only {useful} could be on huge pages, and a TLB reaches {} with pages of 4 KiB",
            facts.reach
        );
        return (Verdict::DoNotUse, vec![what]);
    }
    let gain = match &facts.judged {
        Ok(judged) => judged.gain,
        Err(why) => return (Verdict::Unknown, vec![why.clone()]),
    };
    let (verdict, what) = match gain {
        Gain { low, .. } if low >= WORTH_IT => {
            (Verdict::UseHugePages, "even the lower end of the interval is")
        }
        Gain { .. } if is_guess(facts) => {
            (Verdict::TryIt, "accesses could not be timed here; the gain may be")
        }
        Gain { high, .. } if high < WORTH_IT => {
            (Verdict::DoNotUse, "even the upper end of the interval is not")
        }
        Gain { likely, .. } if likely < WORTH_IT => (Verdict::DoNotUse, "the likely gain is not"),
        _ => (Verdict::TryIt, "the likely gain is, but the lower end of the interval is not"),
    };
    (verdict, vec![format!("{what} worth a change ({WORTH_IT}x)")])
}

/// Returns true if the estimate is based on a guess of the cost of walks.
fn is_guess(facts: &Facts) -> bool {
    let estimate = facts.judged.as_ref().ok().and_then(|judged| judged.estimate.as_ref());
    estimate.is_some_and(|estimate| estimate.is_guess)
}

/// Returns the gain if it is known without observation: memory that the TLB reaches takes no page
/// walks.
fn bounded(memory: &Memory, facts: &Facts) -> Option<Gain> {
    let useful = if uses_shared(&facts.process) { memory.shared } else { memory.promotable };
    (useful <= facts.reach).then_some(Gain {
        low: 1.0,
        likely: 1.0,
        high: WORTH_IT,
        source: CostSource::Estimated,
    })
}

/// Returns the memory of the process and of those that share with it: private memory of all, and
/// shared memory once. Shared memory counts as far as it is resident, touched by any process.
fn of_group(facts: &Facts) -> Memory {
    let mut memory = memory(&facts.process);
    for other in &facts.shared.others {
        let theirs = self::memory(other);
        memory.promotable += theirs.promotable;
        memory.filled += theirs.filled;
        memory.huge += theirs.huge;
    }
    if let Some(shared) = &facts.shared.memory {
        let of_kind = |which: &dyn Fn(&Region) -> bool| -> Bytes {
            let regions = facts.process.regions.iter().filter(|region| which(region));
            regions.map(Region::present_bytes).sum()
        };
        let kind = |region: &Region| facts.process.mappings.get(region.mapping as usize).map(|it| it.kind);
        // Hugetlb pages keep their count; the group's values replace the leader's other shared
        // memory.
        let seen = of_kind(&|region| kind(region) == Some(MappingKind::Shared));
        let seen_huge = of_kind(&|region| kind(region) == Some(MappingKind::Shared) && region.leaf.is_huge());
        memory.shared = memory.shared.saturating_sub(seen) + Bytes(shared.resident_bytes);
        memory.shared_huge = memory.shared_huge.saturating_sub(seen_huge) + Bytes(shared.huge_bytes);
        memory.shared_promotable = Bytes(shared.promotable_bytes);
        memory.shared_misplaced = Bytes(shared.misplaced_bytes);
    }
    memory
}

/// Returns the process's memory by kind: private or shared, and the parts that are huge or could
/// be.
fn memory(process: &Process) -> Memory {
    let mut memory = Memory::default();
    for region in &process.regions {
        let Some(mapping) = process.mappings.get(region.mapping as usize) else { continue };
        let present = region.present_bytes();
        match mapping.kind {
            MappingKind::Shared => {
                memory.shared += present;
                memory.shared_huge += if region.leaf.is_huge() { present } else { Bytes::ZERO };
            }
            MappingKind::Hugetlb if mapping.flags.shared => {
                memory.shared += present;
                memory.shared_huge += present;
            }
            MappingKind::Hugetlb => memory.huge += present,
            MappingKind::Heap | MappingKind::Anonymous if region.leaf != Leaf::Base => memory.huge += present,
            _ if is_promotable(process, region) => {
                memory.promotable += present;
                memory.filled += filled(region);
            }
            _ => {}
        }
    }
    memory
}

/// Returns the memory that a huge page would fill with zeros.
fn filled(region: &Region) -> Bytes {
    match region.present {
        present if present >= LEAST_PRESENT => Bytes(u64::from(PAGES - present) * BASE_PAGE as u64),
        _ => Bytes::ZERO,
    }
}

fn explain(judged: &crate::Judged) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(found) = &judged.estimate {
        let way = match found.class {
            AccessClass::Streaming => "mostly in order, where walks are few and fetched ahead",
            AccessClass::Random => "at random, several walks at a time",
            AccessClass::Dependent => "at random, and may wait for each walk",
        };
        lines.push(format!("it goes through {} {way}", Bytes(found.footprint as u64)));
        lines.push(format!(
            "{:.2} million page walks per second of processor time, {:.2} million with huge pages",
            found.walks / 1e6,
            found.walks_when_huge / 1e6
        ));
    }
    lines.extend(judged.notes.iter().cloned());
    lines
}

fn kind(facts: &Facts, memory: &Memory) -> PageKind {
    if uses_shared(&facts.process) {
        return if memory.shared_promotable > Bytes::ZERO { PageKind::Thp } else { PageKind::Hugetlb2m };
    }
    let forks = !facts.forks.is_empty() || facts.process.sharing_children.is_some_and(|count| count > 0);
    let preloaded = facts.plan.as_ref().is_ok_and(|plan| {
        plan.uses(Mechanism::Preload) && matches!(plan.heap, Heap::Auto | Heap::Hugetlb2M | Heap::Hugetlb1G)
    });
    match !facts.has_thp || preloaded && !forks && facts.pool_2m >= facts.process.rss_anonymous {
        true => PageKind::Hugetlb2m,
        false => PageKind::Thp,
    }
}

/// Returns the ways to release memory that is zero in huge pages: at once, or whenever memory runs
/// short.
fn bloat_is_taken_back(pid: Pid, bloat: Bytes) -> Vec<How> {
    vec![
        How {
            what: format!("sudo megapage reclaim {pid}"),
            why: format!(
                "splits huge pages that hold mostly zeros, and frees those, now (Linux 6.12); about {bloat} here"
            ),
        },
        How {
            what: "sudo megapage daemon".into(),
            why: "does so for all programs before memory runs short".into(),
        },
    ]
}

/// Returns the ways to reach shared memory: external promotion, if the memory lies right, and the
/// program's setting.
fn shared_ways(facts: &Facts, memory: &Memory, own: Option<Own>) -> Vec<How> {
    let mut ways = Vec::new();
    let pid = facts.shared.root.unwrap_or(facts.process.id.pid);
    let is_there = !(facts.process.thp_disabled || facts.ended);
    if is_there && memory.shared_promotable > Bytes::ZERO {
        let when = "at once, from outside, for all processes that share the memory";
        match &facts.attach {
            Attach::Impossible(_) => {}
            Attach::Allowed => {
                ways.push(How { what: format!("megapage run --attach {pid}"), why: when.into() });
            }
            Attach::Lacks(lacking) => ways.push(How {
                what: format!("sudo megapage run --attach {pid}"),
                why: format!("{when} ({lacking})"),
            }),
        }
    }
    ways.extend(own.and_then(|own| own.how));
    if memory.shared_misplaced.0 > memory.shared.0 / 2 && !matches!(facts.attach, Attach::Impossible(_)) {
        ways.push(How {
            what: format!("echo advise > {}", megapage_kernel::thp::path("shmem_enabled")),
            why: "before its next start: the kernel then places shared memory where megapage run --attach can make it huge, \
                  and makes only memory huge for which a program asks"
                .into(),
        });
    }
    ways
}

fn how(facts: &Facts, memory: &Memory, own: Option<Own>) -> Vec<How> {
    if uses_shared(&facts.process) {
        // No heap reaches it.
        return shared_ways(facts, memory, own);
    }
    let (options, arguments) =
        own.as_ref().map_or((Vec::new(), &[][..]), |own| (own.options.clone(), own.arguments));
    let options: String = options.iter().map(|option| format!(" {option}")).collect();
    let mut ways: Vec<How> = own.and_then(|own| own.how).into_iter().collect();
    if let Ok(plan) = &facts.plan {
        let used: Vec<&str> =
            plan.considered.iter().filter(|it| it.used).map(|it| it.reason.as_str()).collect();
        if !used.is_empty() && !facts.command.is_empty() {
            let mut words: Vec<String> = facts.command.iter().map(|word| shell_word(word)).collect();
            let mut when = match &facts.directory {
                Some(directory) if !facts.retitled => {
                    format!("from the next start, in {}", shell_word(directory))
                }
                _ => "from the next start".into(),
            };
            if facts.retitled {
                words.push("ARGUMENTS".into());
                when += " (it has written a title over its arguments: give those that it is started with)";
            }
            let given = |it: &&&str| !facts.command.iter().any(|word| word == **it);
            if arguments.first().is_some_and(|first| given(&first)) {
                words.extend(arguments.iter().map(|word| word.to_string()));
            }
            ways.push(How {
                what: format!("megapage run{options} -- {}", words.join(" ")),
                why: format!("{when}: {}", used.join("; ")),
            });
        }
    }
    match (&facts.attach, facts.process.thp_disabled || facts.ended) {
        (_, true) => {}
        (Attach::Impossible(_), _) if !facts.has_thp => {}
        (Attach::Impossible(why), _) if ways.is_empty() => ways.push(How {
            what: format!("echo always > {}", megapage_kernel::thp::path("enabled")),
            why: format!("for all programs, as khugepaged gets round to it ({why})"),
        }),
        (Attach::Impossible(_), _) => {}
        (Attach::Allowed, _) => ways.push(How {
            what: format!("megapage run --attach {}{options}", facts.process.id.pid),
            why: "at once, from outside, as long as it runs".into(),
        }),
        (Attach::Lacks(lacking), _) => ways.push(How {
            what: format!("sudo megapage run --attach {}{options}", facts.process.id.pid),
            why: format!("at once, from outside ({lacking})"),
        }),
    }
    ways
}

fn risks(facts: &Facts, memory: &Memory) -> Vec<String> {
    let process = &facts.process;
    let mut risks = Vec::new();
    if !facts.has_thp {
        risks.push(
            "this kernel has no transparent huge pages: only a pool of hugetlb pages can hold it".into(),
        );
    }
    if process.thp_disabled {
        risks.push("it runs with transparent huge pages switched off (prctl PR_SET_THP_DISABLE)".into());
    }
    match process.sharing_children {
        Some(count) if count > 0 => risks.push(format!(
            "{count} forked children share its memory: the next write to a huge page splits it (of the pool: copies it)"
        )),
        _ if !facts.forks.is_empty() => risks.push(format!(
            "it imports fork ({}): after a fork the first write to a huge page splits it (of the pool: copies it)",
            facts.forks.join(", ")
        )),
        _ => {}
    }
    risks.push("the first touch of a new huge page zeroes 2 MiB at once: rarer, but longer pauses".into());
    if memory.filled.0 * 20 > memory.promotable.0 {
        risks.push(format!("{} that it has not touched would be filled with zeros", memory.filled));
    }
    risks
}

#[cfg(test)]
#[path = "verdict_tests.rs"]
mod tests;
