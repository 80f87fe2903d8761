"""Cases of the bench: each is one program, a file of cases/ that begins with a header (README.md
lists the header's fields)."""

import pathlib
import re
import shlex
import subprocess

HERE = pathlib.Path(__file__).resolve().parent
CASES = HERE / "cases"
REQUIRED = {"program", "class", "version"}
FIELDS = REQUIRED | {"run", "server", "random", "data", "timeout", "answer", "expect", "phases", "stop", "before",
                     "user"}
COMMENT = re.compile(r"(?://|#|--|;)\s?")
# Command lines, by the file's suffix, for cases whose header has no `run`.
RUNS = {
    ".py": "{python} {case}",
    ".js": "node --max-old-space-size=2048 {case}",
    ".php": "php -d memory_limit=2G {case}",
    ".rb": "ruby {case}",
    ".lua": "lua5.4 {case}",
    ".pl": "perl {case}",
    ".c": "{built}",
    ".cc": "{built}",
    ".rs": "{built}",
    ".go": "{built}",
    ".java": "java -Xms512m -Xmx1g -XX:ActiveProcessorCount=2 -cp {built} {main}",
}


class BadCase(Exception):
    """A header that the bench cannot use."""


def read_header(text):
    """Returns the fields at the head of a case, in comments of any language."""
    header = {}
    for line in text.splitlines():
        if line.startswith(("#!", "<?php")):
            continue
        comment = COMMENT.match(line)
        key, colon, value = line[comment.end():].partition(": ") if comment else ("", "", "")
        if not colon or not re.fullmatch(r"[a-z]+", key):
            break
        header[key] = value.strip()
    return header


class Case:
    """One program."""

    def __init__(self, path, text=None):
        header = read_header(path.read_text() if text is None else text)
        unknown, missing = set(header) - FIELDS, REQUIRED - set(header)
        if unknown or missing:
            raise BadCase(f"{path}: the header has unknown {sorted(unknown)}, lacks {sorted(missing)}")
        self.path = path
        self.name = path.stem
        self.program = header["program"]
        self.kind = header["class"]
        self.version_command = header["version"]
        self.random = header.get("random", "no") == "yes"
        self.data = header.get("data", "").split()
        self.timeout = float(header.get("timeout", "120"))
        self.answer = header.get("answer", "protocol")
        self.expect = header.get("expect")
        self.phased = header.get("phases", "yes") == "yes"
        self.stop = header.get("stop", "TERM")
        self.server = header.get("server")
        self.before = header.get("before")
        self.user = header.get("user")
        # A server's case is its client.
        self.run = header.get("run") or RUNS.get(path.suffix)
        if self.run is None:
            raise BadCase(f"{path}: nothing says how to run a case of this kind: add a line 'run: ...'")

    def words(self, template, places):
        """Returns the words of a header's command line, with its places filled in."""
        return [word.format(**places) for word in shlex.split(template)]

    def version(self, places):
        """Returns the version as the program names it; empty if it is not installed."""
        command = self.version_command.format(**places)
        shown = subprocess.run(["bash", "-c", command], capture_output=True, text=True, errors="replace")
        lines = (shown.stdout + shown.stderr).strip().splitlines()
        if shown.returncode != 0 or not lines:
            return ""
        number = re.search(r"v?\d+(\.\w+)+", re.sub(r"\(.*?\)", "", lines[0]))
        return number.group() if number else lines[0].strip()


def discover(only=()):
    """Returns the cases that `only` names, or all; sorted by file name."""
    cases = [Case(path) for path in sorted(CASES.iterdir()) if path.is_file() and not path.name.startswith(".")]
    names = [case.name for case in cases]
    unknown = set(only) - set(names)
    if unknown:
        raise BadCase(f"no case {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    twice = {name for name in names if names.count(name) > 1}
    if twice:
        raise BadCase(f"several files for the case {', '.join(sorted(twice))}")
    return [case for case in cases if not only or case.name in only]
