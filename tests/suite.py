"""Cases of tests/programs and tests/harm: shell scripts with a header, each run in a session that
ends with it."""

import contextlib
import os
import re
import signal
import subprocess
import sys
import tempfile
import time

# Factor of a case's time limit, which is for cases that never end: a busy or slow machine must not
# fail a case.
SLOWEST = 5


class Case:
    """One script, with its header. `required` and `optional` are the header's keys."""

    required, optional = {"program", "version", "modes"}, {"seconds", "needs"}

    def __init__(self, path):
        self.path = path
        self.name = path.stem
        header = {}
        for line in path.read_text().splitlines():
            if not line.startswith("# ") or ": " not in line:
                break
            key, _, value = line[2:].partition(": ")
            header[key] = value.strip()
        unknown = set(header) - self.required - self.optional
        missing = self.required - set(header)
        if unknown or missing:
            sys.exit(f"driver: {path}: header has unknown {sorted(unknown)}, lacks {sorted(missing)}")
        self.header = header
        self.program = header["program"]
        self.version_command = header["version"]
        self.modes = header.get("modes", "").split()
        self.seconds = int(header.get("seconds", "120"))
        self.needs = header.get("needs", "").split()
        self.shown_version = ""

    def version(self):
        """Returns the version as the program names it; empty if it is not installed."""
        shown = subprocess.run(
            ["bash", "-c", self.version_command], stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace"
        )
        lines = (shown.stdout + shown.stderr).strip().splitlines()
        if shown.returncode != 0 or not lines:
            return ""
        figure = re.search(r"v?\d+(\.\w+)+", re.sub(r"\(.*?\)", "", lines[0]))
        return figure.group() if figure else lines[0].strip()

    def missing(self):
        """Returns the reason to skip a program that is not installed."""
        return f"not installed (no answer from: {self.version_command})"


def read(directory):
    """Returns the scripts of a driver's directory."""
    return sorted((directory / "cases").glob("*.sh"))


def chosen(all_cases, names):
    """Returns the named cases, or all if none is named; exits if a name is unknown."""
    unknown = set(names or []) - {case.name for case in all_cases}
    if unknown:
        there = ", ".join(case.name for case in all_cases)
        sys.exit(f"driver: no case {', '.join(sorted(unknown))}; there are {there}")
    return [case for case in all_cases if not names or case.name in names]


def environment(launcher, mode, sources, work, scratch, repository, **more):
    """Returns the variables that a case finds (the head of tests/programs/driver.py)."""
    return dict(
        os.environ,
        RUN=str(launcher),
        MODE=mode,
        SRC=str(sources),
        WORK=str(work),
        SCRATCH=str(scratch),
        REPOSITORY=str(repository),
        # No run learns from another one's profile.
        MEGAPAGE_TRIALS="none",
        **more,
    )


class Ended:
    """End of a case's script: its status (None if it had to be killed), and its output."""

    def __init__(self, status, out, errors, seconds):
        self.status, self.out, self.errors, self.seconds = status, out, errors, seconds


def session(path, work, variables, limit):
    """Runs a case's script in a session, and ends what it leaves running."""
    started = time.monotonic()
    # Files, not pipes: what a failed case leaves running would keep a pipe open.
    with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as errors:
        process = subprocess.Popen(
            ["bash", "-euo", "pipefail", str(path)],
            cwd=work,
            env=variables,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )
        try:
            status = process.wait(timeout=limit)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        seconds = time.monotonic() - started
        out.seek(0)
        errors.seek(0)
        words = [file.read().decode(errors="replace") for file in (out, errors)]
        return Ended(status, *words, seconds)
