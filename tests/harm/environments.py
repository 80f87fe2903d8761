"""The environments that programs run in, plain and under `megapage run`."""

import inspect
import pathlib
import shlex
import shutil
import subprocess

MIB = 1 << 20
# An administrator measures, adds a margin, and writes a round number.
ROUND = 64 * MIB
MARGIN = 16 * MIB
# RLIMIT_MEMLOCK of most distributions.
MEMLOCK = 8 * MIB
# The peak that the rules allow: plain's times SHARE, plus LEAST.
SHARE, LEAST = 1.05, 4 * MIB
# Calls that a filter allows besides those that strace sees. These are a process's start and end,
# its own numbers, signals, waiting, and the memory calls that any malloc may make. (Service
# managers allow a process's own numbers to all, systemd's @default.)
ALWAYS = (
    "execve exit exit_group rt_sigreturn rt_sigaction rt_sigprocmask restart_syscall futex sched_yield clock_nanosleep "
    "clock_gettime getpid gettid brk mmap munmap mremap mprotect madvise read write close fstat newfstatat"
).split()


def allowed_peak(peak):
    """Returns the most memory that is no difference, in bytes."""
    return int(peak * SHARE) + LEAST


def rounded(size):
    """A limit as an administrator chooses it: 5 % and 16 MiB more, up to the next multiple of 64 MiB."""
    return -(-(int(size * SHARE) + MARGIN) // ROUND) * ROUND


class Environment:
    """One environment. The launcher's lines say how a program gets there."""

    def __init__(self, name, title, few=False):
        self.name, self.title = name, title
        # Run for the programs with `more: yes` alone.
        self.few = few

    def lacks(self, tools):
        """The reason why this machine cannot have it; empty where it can."""
        return ""

    def before(self, case, facts, tools):
        """Shell lines before the program starts."""
        return []

    def outer(self, case, facts, tools):
        """Words before `megapage run`: the launcher is in the environment, too."""
        return []

    # In place of `megapage run` the variables that it would set, as `megapage enable` has a service manager set them.
    by_variables = False

    def inner(self, case, facts, tools):
        """Words between `megapage run` and the program."""
        return []

    def limit(self, facts):
        """The memory limit of the program's control group, in bytes."""
        return None

    def grown(self, facts):
        """The facts with a larger limit, where plain does not run with this one; None where nothing can grow."""
        return None

    def stated(self, facts):
        """The limit in words, for the table."""
        return ""


class Group(Environment):
    def lacks(self, tools):
        return "" if tools.groups else "no memory controller in which a group can be made"

    def limit(self, facts):
        return allowed_peak(facts["peak"])

    def stated(self, facts):
        return f"{self.limit(facts) // MIB} MiB"


class AddressSpace(Environment):
    def before(self, case, facts, tools):
        return [f"ulimit -v {rounded(facts['vm_peak']) >> 10}"]

    def grown(self, facts):
        return dict(facts, vm_peak=int(facts["vm_peak"] * 1.25) + ROUND)

    def stated(self, facts):
        return f"{rounded(facts['vm_peak']) // MIB} MiB"


class Data(Environment):
    def before(self, case, facts, tools):
        return [f"ulimit -d {rounded(facts['vm_data']) >> 10}", f"ulimit -l {MEMLOCK >> 10}"]

    def outer(self, case, facts, tools):
        # Root may lock any amount, unless it lacks this capability.
        return ["setpriv", "--bounding-set=-ipc_lock", "--inh-caps=-ipc_lock"]

    def grown(self, facts):
        return dict(facts, vm_data=int(facts["vm_data"] * 1.25) + ROUND)

    def stated(self, facts):
        return f"{rounded(facts['vm_data']) // MIB} MiB"


class Seccomp(Environment):
    by_variables = True

    def lacks(self, tools):
        return "" if shutil.which("strace") and shutil.which("cc") else "no strace to list a program's calls with, or no cc"

    def inner(self, case, facts, tools):
        numbers = sorted(tools.calls[name] for name in {*facts["calls"], *ALWAYS} if name in tools.calls)
        listed = tools.directory / f"calls.{case.name}"
        listed.write_text("".join(f"{number}\n" for number in numbers))
        return [str(tools.confine), str(listed)]

    def stated(self, facts):
        return f"{len({*facts['calls'], *ALWAYS})} calls"


class Bare(Environment):
    def outer(self, case, facts, tools):
        hide = "mount -t tmpfs -o size=4k,mode=555 none /sys && mount -t tmpfs -o size=4k,mode=555 none /proc"
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", f'{hide} && exec "$@"', "sh"]


class Namespace(Environment):
    def lacks(self, tools):
        tried = subprocess.run(["unshare", "--user", "--map-root-user", "true"], capture_output=True)
        return "" if tried.returncode == 0 else "no user namespace can be made"

    def outer(self, case, facts, tools):
        return ["unshare", "--user", "--map-root-user"]


class Jemalloc(Environment):
    def lacks(self, tools):
        return "" if self.library() else "libjemalloc2 is not installed"

    def before(self, case, facts, tools):
        return [f"export LD_PRELOAD={self.library()}"]

    def library(self):
        return next(map(str, pathlib.Path("/usr/lib").glob("*-linux-gnu/libjemalloc.so.2")), "")


class Chroot(Environment):
    """A root directory without megapage's files: the launcher stays outside."""

    def outer(self, case, facts, tools):
        root = tools.directory / "new-root"
        root.mkdir(exist_ok=True)
        make = (
            'mount -t tmpfs none "$0" && cd "$0" && for d in usr etc dev proc sys; do mkdir $d && mount --rbind /$d $d; done && '
            "for l in bin sbin lib lib32 lib64; do [ ! -L /$l ] || ln -s usr/$l $l; done && mkdir tmp && chmod 1777 tmp && "
            'for d in "$SCRATCH" "$SRC" "$WORK"; do mkdir -p ".$d" && mount --bind "$d" ".$d"; done && cd "$WORK" && exec "$@"'
        )
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", make, str(root)]

    def inner(self, case, facts, tools):
        return ["chroot", str(tools.directory / "new-root"), "env", "-C", "$WORK"]


class OldUserland(Environment):
    """Debian 11's files, with glibc 2.31, and megapage's library at its place among them."""

    def lacks(self, tools):
        return "" if tools.old_root() else f"no root file system of Debian 11 ({tools.why_no_old_root})"

    def outer(self, case, facts, tools):
        make = (
            'mount -t tmpfs none "$0/tmp" && for d in dev proc sys; do mount --rbind /$d "$0/$d"; done && '
            'for d in "$SCRATCH" "$SRC" "$WORK" "$PREFIX"; do mkdir -p "$0$d" && mount --bind "$d" "$0$d"; done && exec "$@"'
        )
        return ["unshare", "--mount", "--propagation", "private", "sh", "-c", make, str(tools.old_root())]

    def inner(self, case, facts, tools):
        return ["chroot", str(tools.old_root()), "env", "-C", "$WORK"]


class Children(Environment):
    """Children that the library cannot be loaded into run before the program."""

    def lacks(self, tools):
        return "" if tools.strangers() else "no program can be compiled with musl and for 32 bits (musl-tools, libc6-dev-i386)"

    def inner(self, case, facts, tools):
        run = "; ".join(shlex.quote(str(stranger)) for stranger in tools.strangers())
        return ["sh", "-c", f'PATH={tools.directory}/strangers:$PATH; {run}; hello-musl; exec "$@"', "sh"]


class High(Environment):
    """A group whose programs reclaim and are slowed down beyond the limit, instead of being killed."""

    def before(self, case, facts, tools):
        return [f'echo {allowed_peak(facts["peak"])} >"$HARM_GROUP/$$/memory.high"']

    def stated(self, facts):
        return f"{allowed_peak(facts['peak']) // MIB} MiB"


class Overcommit(Environment):
    """No more memory promised to all programs than an administrator has measured and rounded."""

    def before(self, case, facts, tools):
        return [f"echo {rounded(facts['committed']) >> 10} >/proc/sys/vm/overcommit_kbytes",
                "echo 2 >/proc/sys/vm/overcommit_memory"]

    def grown(self, facts):
        return dict(facts, committed=int(facts["committed"] * 1.25) + ROUND)

    def stated(self, facts):
        return f"{rounded(facts['committed']) // MIB} MiB"


class Traced(Environment):
    """The kernel's events of the program and its children are kept, and counted by who runs it."""

    def before(self, case, facts, tools):
        return ["echo $$ >>/sys/kernel/tracing/set_event_pid"]


ENVIRONMENTS = [
    Environment("open", "no limit"),
    Group("group", "control group with the plain program's peak x 1.05 + 4 MiB"),
    AddressSpace("as", "RLIMIT_AS with the plain program's VmPeak x 1.05 + 16 MiB, rounded up to the next 64 MiB"),
    Data("data", "RLIMIT_DATA, computed as in `as` from VmData, and RLIMIT_MEMLOCK of 8 MiB without CAP_IPC_LOCK"),
    Seccomp("seccomp", "a filter that kills at system calls that the plain program does not make"),
    Bare("bare", "no /proc and no /sys"),
    Jemalloc("jemalloc", "jemalloc preloaded, too", few=True),
    Namespace("userns", "user namespace", few=True),
    Chroot("chroot", "chroot without megapage's files", few=True),
    OldUserland("debian11", "Debian 11's userland", few=True),
    Children("children", "child processes of musl and of 32 bits", few=True),
]
# Environments that need another kernel or machine: the cases harm_* of tests/vm.
MACHINES = [
    Group("cgroup2", "control group of version 2, memory.max at the plain program's peak x 1.05 + 4 MiB"),
    High("high", "as `cgroup2`, with memory.high"),
    Overcommit("overcommit", "vm.overcommit_memory=2, CommitLimit at the plain program's Committed_AS x 1.05 + 16 MiB, "
               "rounded up to the next 64 MiB"),
    Traced("fragmented", "no free block of 2 MiB, not even after compaction"),
    Environment("small", "a machine of 256 MiB"),
    Environment("nothp", "a kernel built without THP"),
]
BY_NAME = {environment.name: environment for environment in ENVIRONMENTS}
MACHINES_BY_NAME = {environment.name: environment for environment in MACHINES}


def launcher(environment, case, facts, tools, mode, calls=None):
    """The command that the case starts its programs with: in its group, then in the environment. `calls`: a directory where
    strace lists the calls."""
    lines = ["#!/bin/bash"]
    run = f"{shlex.quote(str(tools.prefix))}/bin/megapage run"
    if mode == "under" and environment.by_variables:
        # Outside the group: its memory is not the program's.
        lines.append(f'line=$({run} --dry-run ${{RUN_OPTIONS:-}} -- "$@" | tail -n 1)')
        lines.append('eval "all=(${line#env })"; set=(); for one in "${all[@]}"; do [[ $one =~ ^[A-Z_]+= ]] || break; set+=("$one"); done')
    if tools.groups:
        lines.append('mkdir "$HARM_GROUP/$$"')
        limit = environment.limit(facts)
        lines += tools.groups.limit_lines("$HARM_GROUP/$$", limit) if limit else []
        lines.append('echo $$ >"$HARM_GROUP/$$/cgroup.procs"')
    lines += environment.before(case, facts, tools)
    words = [quoted(word) for word in environment.outer(case, facts, tools)]
    if mode == "under" and not environment.by_variables:
        words.append(f"{run} ${{RUN_OPTIONS:-}} --")
    words += [quoted(word) for word in environment.inner(case, facts, tools)]
    if mode == "under" and environment.by_variables:
        words.append('"${set[@]}"')
    if calls:
        # Beside the program (-DD), so that a signal to the program's number does not reach strace.
        words.append(f'strace -DD -f -qq -c -U name -o "{calls}/$$" --')
    lines.append(f'exec {" ".join(words)} "$@"')
    return "\n".join(lines) + "\n"


def quoted(word):
    """Quotes a word for the shell; the case's directory is a variable there."""
    return '"$WORK"' if word == "$WORK" else shlex.quote(word)


def source(environment):
    """Returns the text that defines an environment: a kept result is of one text."""
    return inspect.getsource(type(environment)) + inspect.getsource(rounded) + inspect.getsource(launcher)
