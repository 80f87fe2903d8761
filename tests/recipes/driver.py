#!/usr/bin/env python3
"""Driver that runs the recipes of docs/recipes/ as they are written, with one line for each page.

A page has its settings in one comment, `<!-- recipe: KEY VALUE; KEY VALUE -->`:

    programs A B    commands that must be there, else the page is skipped
    memory 600m     the most memory that it takes: this must be available, and 2 GiB beyond
    not-run WHY     nothing on it can be run here, and why; the page has no blocks then

These blocks are run, in the order of the page, by `bash -euo pipefail`:

    ```sh run       the lines between the fences, in one shell of an unprivileged user (USER)
    ```sh run root  the same as root, in a separate shell
    ```sh run fails must end with an error; in a separate shell
    <!-- test       lines that a reader need not see, to the closing -->: waiting, and checking.
                    `wait_until COMMAND` waits until it succeeds

The lines of a block with ```text said must be found in the output of the block before, line by line
in this order; `...` stands for anything. At the end, also after a failure, processes left running
are killed, and mounts are unmounted. The pool and shmem_enabled are restored.

Closes with "N passed, N failed, N skipped".
"""

import contextlib
import os
import pathlib
import pwd
import re
import select
import shutil
import signal
import subprocess
import sys
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
import driving

PAGES = driving.REPOSITORY / "docs/recipes"
# Setting of huge pages for shared memory: a page may change it.
SHMEM = pathlib.Path("/sys/kernel/mm/transparent_hugepage/shmem_enabled")
# Limit in seconds for a page that never ends: a busy machine must not fail a page.
LONGEST_S = 300
USER = "nobody"


class Bad(Exception):
    """A page that cannot be run as it stands."""


class Block:
    """A piece of a page: kind is user, root, fails, test or said."""

    def __init__(self, kind, line, text):
        self.kind, self.line, self.text = kind, line, text


KINDS = {
    "sh run": "user",
    "sh run root": "root",
    "sh run fails": "fails",
    "text said": "said",
}


class Page:
    """A page, split into settings and blocks."""

    def __init__(self, path):
        self.path, self.name = path, path.stem
        self.settings, self.blocks = {}, []
        lines = path.read_text().splitlines()
        index = 0
        while index < len(lines):
            line = lines[index]
            index += 1
            if line.startswith("<!-- recipe:"):
                self._header(line)
            elif line.strip() == "<!-- test":
                index = self._take("test", lines, index, "-->")
            elif line.startswith("```") and line != "```":
                index = self._take(KINDS.get(line[3:].strip()), lines, index, "```")
        if not self.settings:
            raise Bad(f"{path.name}: no line '<!-- recipe: ... -->'")
        runs = [block for block in self.blocks if block.kind in ("user", "root", "fails")]
        if "not-run" in self.settings:
            if runs:
                raise Bad(f"{path.name}: 'not-run', and a block to run in line {runs[0].line}")
        elif not any(block.kind == "user" for block in runs):
            raise Bad(f"{path.name}: no block '```sh run', and no 'not-run' that says why")
        if self.blocks and self.blocks[0].kind == "said":
            raise Bad(f"{path.name}:{self.blocks[0].line}: '```text said' before anything is run")

    def _header(self, line):
        inside = line.removeprefix("<!-- recipe:").removesuffix("-->")
        for part in filter(None, (part.strip() for part in inside.split(";"))):
            key, _, value = part.partition(" ")
            if key not in ("programs", "memory", "not-run") or not value:
                raise Bad(f"{self.path.name}: '{part}' in its recipe line is not known")
            self.settings[key] = value.strip()

    def _take(self, kind, lines, start, end):
        stop = start
        while stop < len(lines) and lines[stop].strip() != end:
            stop += 1
        if stop == len(lines):
            raise Bad(f"{self.path.name}:{start}: a block that does not end")
        if kind:
            self.blocks.append(Block(kind, start, "\n".join(lines[start:stop])))
        return stop + 1

    def memory_kib(self):
        figure = re.fullmatch(r"(\d+)([mg])", self.settings.get("memory", "512m"))
        if not figure:
            raise Bad(f"{self.path.name}: memory '{self.settings['memory']}' is not like 600m")
        return int(figure[1]) << (10 if figure[2] == "m" else 20)


def script(page, scratch):
    """Returns the page as one shell script. Blocks that the user cannot run are left to the driver,
    over a pair of descriptors."""
    lines = [
        "set -euo pipefail",
        # The driver's answer is the block's exit status.
        'driver_() { echo "$1" >&"$TO_DRIVER"; local status_; read -r status_ <&"$FROM_DRIVER"; return "$status_"; }',
        # No limit here, for a busy machine: the driver ends a page that takes too long.
        'wait_until() { echo "waits for: $*" >>"$WAITING"; until "$@"; do sleep 0.1; done; }',
        "trap 'kill $(jobs -p) 2>/dev/null || true' EXIT",
    ]
    for number, block in enumerate(page.blocks):
        lines.append(f"echo {number} >{scratch}/at")
        output = f">>{scratch}/{number}.out 2>&1"
        if block.kind == "user":
            lines += ["{", block.text, f"}} {output}"]
        elif block.kind == "fails":
            lines += [
                "set +e",
                f"( set -euo pipefail\n{block.text}\n) {output}",
                "status_=$?",
                "set -e",
                '[ "$status_" -ne 0 ] || { echo "it succeeded, and was to fail" >&2; exit 1; }',
            ]
        elif block.kind == "test":
            lines += [block.text]
        else:
            lines += [f"driver_ {number}"]
    lines.append("trap - EXIT; kill $(jobs -p) 2>/dev/null || true")
    return "\n".join(lines) + "\n"


def pattern(line):
    """Returns a pattern for a line of expected output; `...` stands for anything."""
    return ".*".join(re.escape(part) for part in re.split(r"\s*\.\.\.\s*", line.strip()))


class Served:
    """The driver's part of a page that runs: root's blocks, and the checks of output."""

    def __init__(self, page, scratch, work, environment):
        self.page, self.scratch, self.work, self.environment = page, scratch, work, environment
        self.why = ""

    def serve(self, number):
        """Runs or checks one block; returns its exit status."""
        block = self.page.blocks[number]
        if block.kind == "root":
            try:
                with open(self.scratch / f"{number}.out", "w") as output:
                    return subprocess.run(
                        ["bash", "-euo", "pipefail", "-c", block.text],
                        cwd=self.work,
                        env=self.environment,
                        stdin=subprocess.DEVNULL,
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        timeout=LONGEST_S,
                    ).returncode
            except subprocess.TimeoutExpired:
                self.why = f"no end after {LONGEST_S} s"
                return 124
        # Output of a program in the background may come later.
        ran = max(n for n in range(number) if self.page.blocks[n].kind in ("user", "root", "fails"))
        wanted = [pattern(line) for line in block.text.splitlines() if line.strip()]
        end = time.monotonic() + LONGEST_S
        while time.monotonic() < end:
            text = (self.scratch / f"{ran}.out").read_text(errors="replace").splitlines()
            rest = iter(text)
            missing = [one for one in wanted if not any(re.search(one, line) for line in rest)]
            if not missing:
                return 0
            time.sleep(0.1)
        self.why = f"not said: {missing[0]}"
        return 1


@contextlib.contextmanager
def machine():
    """Holds the machine's lock, with a pool without a free page. Restores the pool and
    shmem_enabled afterwards."""
    with driving.without_pool():
        shmem = SHMEM.read_text().split("[")[-1].split("]")[0] if SHMEM.exists() else None
        try:
            yield
        finally:
            if shmem:
                SHMEM.write_text(shmem)


def absent(page):
    """Returns the reason if the page cannot be run on this machine; else an empty string."""
    if os.getuid() != 0:
        return "needs root"
    if not driving.POOL.exists():
        return "needs a pool of 2 MiB pages"
    lacking = [name for name in page.settings.get("programs", "").split() if not shutil.which(name, path=search_path())]
    if lacking:
        return f"not installed: {', '.join(lacking)}"
    return ""


def short_of_memory(page):
    """Returns the reason if there is too little memory, even a minute later; else an empty string.
    Called under the lock."""
    for _ in range(60):
        if driving.memory_available_kib() >= page.memory_kib() + driving.LEAST_AVAILABLE_KIB:
            return ""
        time.sleep(1)
    return f"needs {page.settings.get('memory', '512m')} and 2 GiB beyond to be available"


def search_path():
    """Returns PATH with the directories that Debian keeps out of it."""
    postgres = sorted(pathlib.Path("/usr/lib/postgresql").glob("*/bin"))
    return ":".join([*map(str, postgres[-1:]), os.environ["PATH"], "/usr/local/sbin:/usr/sbin:/sbin"])


def run(page, prefix, scratch):
    """Runs one page; returns (outcome, why, seconds)."""
    why = absent(page)
    if why:
        return "skipped", why, 0.0
    scratch.mkdir()
    scratch.chmod(0o777)
    work = scratch / "work"
    work.mkdir()
    account = pwd.getpwnam(USER)
    os.chown(work, account.pw_uid, account.pw_gid)
    environment = {
        "PATH": f"{prefix}/bin:{search_path()}",
        "HOME": str(work),
        "USER": USER,
        "TMPDIR": str(work),
        "LC_ALL": "C.UTF-8",
        # No page uses what another page has found out about a program.
        "MEGAPAGE_TRIALS": "none",
    }
    to_driver, from_driver = os.pipe(), os.pipe()
    inherited = (to_driver[1], from_driver[0])
    environment_of_user = dict(
        environment, TO_DRIVER=str(inherited[0]), FROM_DRIVER=str(inherited[1]), WAITING=str(scratch / "waiting")
    )
    file = scratch / "script"
    file.write_text(script(page, scratch))
    served = Served(page, scratch, work, environment)
    with machine():
        why = short_of_memory(page)
        if why:
            os.close(to_driver[0])
            for descriptor in (*inherited, from_driver[1]):
                os.close(descriptor)
            return "skipped", why, 0.0
        started = time.monotonic()
        with open(scratch / "errors", "w") as errors:
            process = subprocess.Popen(
                ["setpriv", f"--reuid={USER}", f"--regid={account.pw_gid}", "--clear-groups", "bash", str(file)],
                cwd=work,
                env=environment_of_user,
                stdin=subprocess.DEVNULL,
                stdout=errors,
                stderr=subprocess.STDOUT,
                pass_fds=inherited,
                start_new_session=True,
            )
        for descriptor in inherited:
            os.close(descriptor)
        watchdog = threading.Timer(LONGEST_S, kill, [process.pid])
        watchdog.start()
        try:
            asking = os.fdopen(to_driver[0])
            while not has_ended(process):
                number = read_number(asking, process)
                if number is not None:
                    status = served.serve(number)
                    with contextlib.suppress(OSError):
                        os.write(from_driver[1], f"{status}\n".encode())
        finally:
            late = not watchdog.is_alive()
            watchdog.cancel()
            kill(process.pid)
            process.wait()
            unmount(work)
            asking.close()
            with contextlib.suppress(OSError):
                os.close(from_driver[1])
    seconds = time.monotonic() - started
    if process.returncode == 0:
        return "passed", "", seconds
    at = int((scratch / "at").read_text() or 0) if (scratch / "at").exists() else 0
    block = page.blocks[at]
    said = "\n".join(
        part.read_text(errors="replace").strip()[-1500:]
        for part in [scratch / "errors", scratch / "waiting", *(scratch / f"{n}.out" for n in range(max(0, at - 1), at + 1))]
        if part.exists()
    )
    why = f"no end after {LONGEST_S} s" if late else served.why or f"exit status {process.returncode}"
    return "failed", f"{page.path.name}:{block.line} ({block.kind}): {why}\n{said}", seconds


def has_ended(process):
    """Returns true if the script has ended. Does not reap it: its process number stays taken until
    its session is gone."""
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    return os.waitid(os.P_PID, process.pid, flags) is not None


def read_number(asking, process):
    """Returns the block's number that the script asks for; None if it ended without asking.
    Programs that it left running may hold the other end of the pipe, so the script's own end
    counts."""
    while not has_ended(process):
        if select.select([asking], [], [], 0.05)[0]:
            line = asking.readline()
            return int(line) if line.strip() else None
    return None


def kill(leader):
    """Kills everything in the page's session."""
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            # Behind the name, which may hold anything: state, parent, group, session.
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
            if int(fields[3]) == leader:
                os.kill(int(entry.name), signal.SIGKILL)


def unmount(work):
    """Unmounts everything that is mounted below a page's directory, the innermost first."""
    points = [line.split()[4] for line in pathlib.Path("/proc/self/mountinfo").read_text().splitlines()]
    for point in sorted((point for point in points if point.startswith(f"{work}/")), reverse=True):
        subprocess.run(["umount", "--lazy", point], check=False)


def main():
    parser = driving.parser("Runs the recipes of docs/recipes/ as they are written.")
    parser.add_argument("--only", action="append", metavar="PAGE", help="only this page; may be repeated")
    arguments = parser.parse_args()
    try:
        pages = [Page(path) for path in sorted(PAGES.glob("*.md")) if path.stem != "README"]
        index = (PAGES / "README.md").read_text()
        for page in pages:
            if f"({page.path.name})" not in index:
                raise Bad(f"{page.path.name}: docs/recipes/README.md has no link to it")
    except Bad as error:
        sys.exit(f"driver: {error}")
    unknown = set(arguments.only or []) - {page.name for page in pages}
    if unknown:
        sys.exit(f"driver: no page {', '.join(sorted(unknown))}; there are {', '.join(p.name for p in pages)}")
    pages = [page for page in pages if not arguments.only or page.name in arguments.only]

    tally = driving.Tally()
    with driving.scratch("recipes", arguments) as scratch:
        for page in pages:
            if "not-run" in page.settings:
                print(f"not run {page.name:14}  {page.settings['not-run']}", flush=True)
                continue
            outcome, why, seconds = run(page, scratch / "prefix", scratch / page.name)
            tally.add(f"{page.name:14}", f"recipe {page.name}", outcome, why, seconds)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
