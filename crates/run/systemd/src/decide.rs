//! The way to bring a service's program onto huge pages: the lines of its drop-in, and the reasons.

use crate::command::{ExecCommand, rewritten};
use crate::error::{SystemdError, refused};
use crate::files::{Files, Found};
use crate::plain;
use crate::reach::{Addition, Asked, Way};
use crate::sandbox;
use crate::service::Service;
use crate::specifier::resolved;
use crate::syntax::{quoted, words};
use megapage_kernel::process::read_status;
use megapage_kernel::{ANY_FILTERS, KernelRoot, identity};
use megapage_launch::applications::{Application, Needs};
use megapage_launch::machine::Machine;
use megapage_launch::mechanism::{Considered, Plan};
use megapage_launch::program::Program;
use megapage_launch::request::{Fork, Heap, Mechanism, OwnThp, Request, ReturnAfter, Shm, Text};
use megapage_launch::switched_off::SwitchedOff;
use megapage_units::Pid;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// The decision for one service.
#[derive(Clone, Debug, Serialize)]
pub struct Decision {
    /// The way.
    pub way: Way,
    /// The reason for this way.
    pub why: String,
    /// The program that was examined.
    pub program: String,
    /// The mechanisms of `megapage run`, each with its reason.
    pub mechanisms: Vec<Considered>,
    /// Lines that the unit's confinement makes necessary.
    pub additions: Vec<Addition>,
    /// Further notes for the user.
    pub notes: Vec<String>,
    /// The assignments of the drop-in.
    #[serde(skip)]
    pub lines: Vec<String>,
    /// The variables that have to hold after systemd has merged all files.
    #[serde(skip)]
    pub variables: Vec<(String, String)>,
    /// The preloaded library, if there is one.
    #[serde(skip)]
    pub library: Option<PathBuf>,
}

const JVM_SWITCH: &str = "-XX:+UseTransparentHugePages";
const TOOL_VARIABLE: &str = "JAVA_TOOL_OPTIONS";

/// Decides for a service, which is as it would be without the drop-in.
pub fn decide(
    root: &KernelRoot,
    files_root: &Path,
    service: &Service,
    asked: &Asked,
) -> Result<Decision, SystemdError> {
    let files = Files::new(files_root);
    let refused = |why: String| refused(&service.name, why);
    let commands = service.commands()?;
    let judged = Judged::of(&files, service, &commands).map_err(refused)?;
    let mut request = Request {
        program: judged.path.clone().into(),
        arguments: judged.arguments.iter().map(Into::into).collect(),
        ..asked.request.clone()
    };
    if let Some(known) = judged.known {
        known.complete(&mut request, judged.behind);
    }
    let (environment, sources) = environment(&files, service)?;
    let java = judged.known.and_then(|known| known.java_variable);
    let mut decision = match (request.thp, request.text.kind, java) {
        (OwnThp::Settings, Text::None, Some(variable)) if request.heap != Heap::None => {
            let other = !matches!(request.mechanism, None | Some(Mechanism::Runtime))
                || matches!(request.heap, Heap::Hugetlb1G | Heap::Hugetlb2M)
                || request.pool.is_some()
                || request.shm.is_asked();
            if other {
                return Err(refused(format!(
                    "a script starts the JVM, and {variable} is all that reaches it: leave --mechanism, --heap 2m and 1g, \
                     --pool and --shm out"
                )));
            }
            of_java(variable, judged.path.display().to_string())
        }
        _ => {
            let manager = match files_root == Path::new("/") {
                true => read_status(root, Pid(1)).ok().and_then(|status| SwitchedOff::of(root, &status)),
                false => None,
            };
            by_plan(root, service, &request, &environment, manager.is_some()).map_err(refused)?
        }
    };
    decision.program = judged.path.display().to_string();
    for (name, value) in &mut decision.variables {
        // The unit's own value stays in front.
        if name.ends_with("_OPTS") || name.ends_with("_OPTIONS") {
            match environment.get(name.as_str()) {
                Some(present) if present.contains(JVM_SWITCH) => *value = present.clone(),
                Some(present) if !present.is_empty() => *value = format!("{present} {value}"),
                _ => {}
            }
        }
        if let Some(path) = sources.get(name.as_str()) {
            let word = quoted(value);
            let path = path.display();
            return Err(refused(format!(
                "{path} sets {name}, and comes after the unit: write {name}={word} there"
            )));
        }
        if service.words("UnsetEnvironment").iter().any(|word| word == name) {
            return Err(refused(format!("UnsetEnvironment={name} takes away what would be set")));
        }
    }
    let seen = match decision.way {
        Way::Environment => {
            let word = |(name, value): &(String, String)| quoted(&format!("{name}={value}"));
            decision.lines =
                decision.variables.iter().map(|pair| format!("Environment={}", word(pair))).collect();
            decision.library.clone().into_iter().collect::<Vec<PathBuf>>()
        }
        Way::Launcher => {
            let launcher = launcher(&asked.launcher, &request);
            decision.lines = vec!["ExecStart=".into()];
            decision.lines.extend(
                commands.iter().map(|command| format!("ExecStart={}", rewritten(command, &launcher))),
            );
            let mut seen = vec![asked.launcher.clone()];
            seen.extend(decision.library.clone());
            seen
        }
    };
    if files_root != Path::new("/") {
        let missing = seen.iter().filter(|file| !files.path(file).exists());
        decision.notes.extend(
            missing.map(|file| format!("{} is missing below {}", file.display(), files_root.display())),
        );
    } else if let Some(user) = service.user() {
        let hidden = seen.iter().find(|file| !is_open_to_all(file));
        if let Some(file) = hidden {
            let file = file.display();
            return Err(refused(format!(
                "{user} may not read {file}: install megapage below /usr (make install)"
            )));
        }
    }
    decision.additions = {
        let has_library = decision.library.is_some();
        sandbox::additions(service, decision.way, &seen, has_library).map_err(refused)?
    };
    decision.lines.extend(decision.additions.iter().map(|added| added.line.clone()));
    // The library and the launcher check the switch that turns megapage off; other programs do not.
    let heeds = |(name, _): &(String, String)| name == "LD_PRELOAD" || name.starts_with("MEGAPAGE_");
    let by_others = !decision.variables.iter().all(heeds);
    decision.lines.extend(plain::lines(&quoted(&asked.launcher.to_string_lossy()), by_others));
    decision.notes.extend(notes(root, service, &judged, decision.way));
    Ok(decision)
}

/// The parts of a unit that are examined.
struct Judged {
    /// The path of the program, below the root.
    path: PathBuf,
    /// Its arguments, if the unit itself starts it.
    arguments: Vec<String>,
    known: Option<&'static Application>,
    /// True if the program is started by a script of the unit, not by the unit itself.
    behind: bool,
}

impl Judged {
    fn of(files: &Files, service: &Service, commands: &[ExecCommand]) -> Result<Judged, String> {
        // The commands of Type=oneshot run one after the other; another type has one.
        let Some(command) = commands.last() else { return Err("has no ExecStart=".into()) };
        let written = &command.program;
        let Some(program) = resolved(written, &service.name) else {
            let instance = service.name.instance() == Some("") && written.contains(['i', 'I']);
            let help = if instance { ": name an instance, such as NAME@INSTANCE" } else { "" };
            return Err(format!(
                "ExecStart={written}: what the program is cannot be told before the start{help}"
            ));
        };
        let path = match program.starts_with('/') {
            true => files.path(Path::new(&program)),
            false => PathBuf::from(&program),
        };
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let by_name = Application::of_program(&name);
        let known = by_name.or_else(|| Application::of_unit(service.name.prefix()));
        if by_name.is_none()
            && let Some(inner) = known.and_then(|known| known.program)
            && let Some(path) = newest(files, inner)
        {
            return Ok(Judged { path, arguments: Vec::new(), known, behind: true });
        }
        let words = words(&command.rest).unwrap_or_default().into_iter();
        let arguments = words.map(|word| resolved(&word.text, &service.name).unwrap_or(word.text)).collect();
        Ok(Judged { path, arguments, known, behind: false })
    }
}

/// Returns the newest file that a path with one `*/` matches: the name with the greatest number,
/// else the last name. A path without `*/` is returned if it is a file.
fn newest(files: &Files, pattern: &str) -> Option<PathBuf> {
    let Some((before, after)) = pattern.split_once("*/") else {
        return Some(files.path(Path::new(pattern))).filter(|path| path.is_file());
    };
    let directory = files.path(Path::new(before));
    let mut names = files.names(&directory);
    names.sort_by_key(|name| (name.parse::<u32>().unwrap_or(0), name.clone()));
    names.into_iter().rev().map(|name| directory.join(name).join(after)).find(|path| path.is_file())
}

/// Returns the decision for a JVM that a script starts: the script reads its options from a
/// variable.
fn of_java(variable: &str, program: String) -> Decision {
    Decision {
        way: Way::Environment,
        why: format!(
            "{variable} hands {JVM_SWITCH} to the JVM that a script starts; the command stays as it is"
        ),
        program,
        mechanisms: Vec::new(),
        additions: Vec::new(),
        notes: Vec::new(),
        lines: Vec::new(),
        variables: vec![(variable.into(), JVM_SWITCH.into())],
        library: None,
    }
}

fn by_plan(
    root: &KernelRoot,
    service: &Service,
    request: &Request,
    environment: &BTreeMap<String, String>,
    manager_off: bool,
) -> Result<Decision, String> {
    if !matches!(request.text.kind, Text::None | Text::File) {
        let kind = request.text.kind.name();
        return Err(format!(
            "--text {kind} takes a launcher that stays, and the service another main process; use --text file"
        ));
    }
    let adapt = |machine: &mut Machine| {
        machine.environment = environment.clone();
        // The service's control group is not the caller's.
        machine.hugetlb_may_be_refused = true;
        // The drop-in adds the calls that the unit's filter lacks.
        machine.filters = Some(ANY_FILTERS.into());
        if let (None, Some(lacking)) = (&machine.promotion_lacks, lacks_nice(service)) {
            machine.promotion_lacks = Some(lacking);
        }
    };
    let (program, plan) =
        megapage_launch::run::plan(root, request, adapt).map_err(|error| error.to_string())?;
    let (way, why, variables) = way(&program, &plan, request, manager_off)?;
    let preloaded = plan.environment.iter().find(|(name, _)| name == "LD_PRELOAD");
    let library = preloaded.and_then(|(_, list)| list.to_str()?.split([':', ' ']).next().map(PathBuf::from));
    Ok(Decision {
        way,
        why,
        program: String::new(),
        mechanisms: plan.considered,
        additions: Vec::new(),
        notes: plan.notes,
        lines: Vec::new(),
        variables,
        library,
    })
}

type Chosen = (Way, String, Vec<(String, String)>);

fn way(program: &Program, plan: &Plan, request: &Request, manager_off: bool) -> Result<Chosen, String> {
    let launcher = |why: &str| Ok((Way::Launcher, why.to_string(), Vec::new()));
    if request.thp != OwnThp::Settings {
        return launcher("the program inherits PR_SET_THP_DISABLE from who starts it");
    }
    if manager_off && request.clears_thp() {
        return launcher(
            "systemd has transparent huge pages switched off (PR_SET_THP_DISABLE), and the launcher clears that for the program",
        );
    }
    if request.text.kind == Text::File {
        return launcher("the launcher primes the program's file before it starts");
    }
    let by_variables = [Mechanism::Preload, Mechanism::Tunable].into_iter().any(|it| plan.uses(it));
    if by_variables || plan.uses(Mechanism::Runtime) {
        let mut variables = Vec::new();
        for (name, value) in &plan.environment {
            let Some(value) = value.to_str() else {
                return Err(format!("{name} would hold a path that is not UTF-8"));
            };
            variables.push((name.clone(), value.to_string()));
        }
        if !plan.arguments.is_empty() {
            // The JDK's tools take these options behind -J.
            let words: Vec<&str> =
                plan.arguments.iter().map(|it| it.strip_prefix("-J").unwrap_or(it)).collect();
            variables.push((TOOL_VARIABLE.into(), words.join(" ")));
        }
        let what = match plan.uses(Mechanism::Preload) {
            true => "the loader brings the library; ",
            false => "",
        };
        let why = format!(
            "{what}variables suffice: the command, the main process and readiness stay as they are, also after an update \
             of the package"
        );
        return Ok((Way::Environment, why, variables));
    }
    if plan.uses(Mechanism::Outside) {
        return launcher(
            "only promotion from outside reaches the program: the launcher executes it in its own place, and a process \
             beside it promotes",
        );
    }
    if let Some(java) = &plan.java {
        let chosen = plan.considered.iter().find(|it| it.mechanism == Mechanism::Runtime);
        let why = chosen.map_or_else(|| java.need.describe(), |it| it.reason.clone());
        return Err(format!("nothing is left to do: {why}"));
    }
    let reasons: Vec<String> =
        plan.considered.iter().map(|it| format!("{}: {}", it.mechanism, it.reason)).collect();
    let name = program.path.file_name().unwrap_or_default().to_string_lossy();
    Err(format!(
        "nothing reaches {name} from within its service ({}); megapage daemon promotes it from outside",
        reasons.join("; ")
    ))
}

/// Returns the right that the service lacks to promote from a process beside its program; `None` if
/// it has it.
fn lacks_nice(service: &Service) -> Option<String> {
    const NICE: &str = "CAP_SYS_NICE";
    let has = |key: &str| service.words(key).iter().any(|word| word == NICE);
    if service.user().is_some() {
        let kept = has("AmbientCapabilities");
        return (!kept).then(|| format!("the service's user lacks {NICE}"));
    }
    let bounds = service.all("CapabilityBoundingSet");
    let set_to_none =
        service.entries.iter().any(|entry| entry.key == "CapabilityBoundingSet") && bounds.is_empty();
    let bounded = bounds.iter().fold(None, |permitted: Option<bool>, entry| {
        let (denies, list) = match entry.value.strip_prefix('~') {
            Some(list) => (true, list),
            None => (false, entry.value.as_str()),
        };
        let named = list.split_whitespace().any(|word| word == NICE);
        Some(if named { !denies } else { permitted.unwrap_or(denies) })
    });
    (set_to_none || bounded == Some(false)).then(|| format!("CapabilityBoundingSet= takes {NICE} away"))
}

/// The variables of the service, and for each the file of EnvironmentFile= that sets it, if one
/// does.
type Variables = (BTreeMap<String, String>, BTreeMap<String, PathBuf>);

fn environment(files: &Files, service: &Service) -> Result<Variables, SystemdError> {
    let mut environment = service.environment();
    let mut sources = BTreeMap::new();
    for entry in service.all("EnvironmentFile") {
        let path = entry.value.trim_start_matches('-');
        let Some(path) = resolved(path, &service.name) else { continue };
        let path = files.path(Path::new(&path));
        if let Some(Found::Text(_, text)) = files.read(&path)? {
            for line in text.lines().filter(|line| !line.trim_start().starts_with(['#', ';'])) {
                if let Some((name, value)) = line.split_once('=') {
                    let value = value.trim().trim_matches(['"', '\'']);
                    environment.insert(name.trim().into(), value.into());
                    sources.insert(name.trim().into(), path.clone());
                }
            }
        }
    }
    Ok((environment, sources))
}

/// Returns the launcher's words up to the program.
fn launcher(path: &Path, request: &Request) -> String {
    let mut words = vec![path.to_string_lossy().into_owned(), "run".into()];
    words.extend(options(request));
    words.iter().map(|word| quoted(word)).collect::<Vec<_>>().join(" ")
}

/// Returns the options of `megapage run` for a request, without those that have their defaults.
pub(crate) fn options(request: &Request) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    // The pool's name is optional, so it belongs to the same word.
    let pool = request.pool.as_ref().map(|pool| format!("--pool={}", pool.to_string_lossy()));
    words.extend(pool);
    let mut add = |name: &str, value: String| words.extend([name.to_string(), value]);
    // With --thp never, `run` chooses --heap none itself.
    if request.heap != Heap::Auto && !(request.heap == Heap::None && request.thp == OwnThp::Never) {
        add("--heap", request.heap.name().into());
    }
    if request.shm != Shm::Auto {
        add("--shm", request.shm.name().into());
    }
    if request.text.kind != Text::None {
        add("--text", request.text.kind.name().into());
    }
    if let Some(mechanism) = request.mechanism {
        add("--mechanism", mechanism.name().into());
    }
    if request.return_after != ReturnAfter::default() {
        add(
            "--return-after",
            match request.return_after {
                ReturnAfter::Never => "never".into(),
                ReturnAfter::After(delay) => format!("{}ms", delay.as_millis()),
            },
        );
    }
    if request.fork != Fork::Auto {
        add("--fork", request.fork.name().into());
    }
    if request.thp != OwnThp::Settings {
        add("--thp", request.thp.name().into());
    }
    for (set, name) in
        [(request.children, "--children"), (request.jvm, "--jvm"), (!request.heed_verdict, "--ignore-trial")]
    {
        if set {
            words.push(name.into());
        }
    }
    words
}

/// Returns true if every user may read a file, and pass the directories above it.
fn is_open_to_all(file: &Path) -> bool {
    let mode = |path: &Path| fs::metadata(path).map_or(0, |it| it.permissions().mode());
    let above = file.ancestors().skip(1).filter(|path| !path.as_os_str().is_empty());
    mode(file) & 0o004 != 0 && above.into_iter().all(|path| mode(path) & 0o001 != 0)
}

fn notes(root: &KernelRoot, service: &Service, judged: &Judged, way: Way) -> Vec<String> {
    let mut notes = Vec::new();
    if judged.behind {
        let path = judged.path.display();
        notes.push(format!("ExecStart= starts it by a script; judged is what that starts: {path}"));
    }
    if let Some(known) = judged.known {
        notes.extend(known.lines(&Needs::default()));
    }
    if service.last("AppArmorProfile").is_some() {
        notes.push(
            "AppArmorProfile=: the profile has to permit reading and mapping megapage's library".into(),
        );
    }
    if identity::selinux_enforcing(root) {
        let what = match way {
            Way::Environment => {
                "the loader drops LD_PRELOAD where the policy changes the domain at the start"
            }
            Way::Launcher => "the policy may start the program in the launcher's domain",
        };
        notes.push(format!("SELinux is enforcing: {what}; see whether the service is confined as before"));
    }
    notes
}
