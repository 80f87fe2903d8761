"""Cases of the bench: each is one program, a file of cases/ that begins with a header (README.md
lists the header's fields). A file with the field `large` is also a case of the class large, at that
size."""

import pathlib
import re
import shlex
import subprocess

from ways import TUNED

HERE = pathlib.Path(__file__).resolve().parent
CASES = HERE / "cases"
REQUIRED = {"program", "class", "version"}
FIELDS = REQUIRED | {"run", "server", "random", "data", "timeout", "answer", "expect", "phases", "stop", "before",
                     "user", "large", "variants", "best", "blocks", "loss"}
# The class large replaces the field of the same name by this one.
LARGE = "large-"
FIELDS |= {LARGE + name for name in FIELDS - {"large", "class"}}
# Seconds that a large program has, unless its header says otherwise.
LARGE_TIMEOUT = "600"
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
        if not colon or not re.fullmatch(r"[a-z]+(-[a-z]+)?", key):
            break
        header[key] = value.strip()
    return header


def bytes_of(text):
    """Returns a size such as 512m or 4g in bytes."""
    number, unit = text[:-1], text[-1:].lower()
    if unit not in ("m", "g") or not number.isdigit() or int(number) == 0:
        raise BadCase(f"{text!r} is no size: give a whole number with m or g, such as 512m")
    return int(number) << {"m": 20, "g": 30}[unit]


class Case:
    """One program; in the class large if it has a size. `variant` is (name, word) of one of the
    header's variants."""

    def __init__(self, path, text=None, size=None, variant=("", "")):
        header = read_header(path.read_text() if text is None else text)
        unknown, missing = set(header) - FIELDS, REQUIRED - set(header)
        if unknown or missing:
            raise BadCase(f"{path}: the header has unknown {sorted(unknown)}, lacks {sorted(missing)}")
        if size:
            header.setdefault(LARGE + "timeout", LARGE_TIMEOUT)
            # The header's answer is that of the small size.
            header.pop("expect", None)
            header |= {name.removeprefix(LARGE): value for name, value in header.items() if name.startswith(LARGE)}
        name, self.variant = variant
        self.path = path
        self.size = size or 0
        self.name = path.stem + (f"-{name}" if name else "")
        self.program = header["program"] + (f" ({self.variant})" if name else "")
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
        # The size in the class large, with `only` if the case is not in the class small.
        self.large, _, only = header.get("large", "").partition(" ")
        self.large_only = only == "only"
        self.variants = dict(word.split(":", 1) for word in header.get("variants", "").split())
        self.blocks = header.get("blocks", "no") == "yes"
        self.best = header.get("best", TUNED)
        self.loss = header.get("loss", "")
        # A server's case is its client.
        self.run = header.get("run") or RUNS.get(path.suffix)
        if self.run is None:
            raise BadCase(f"{path}: nothing says how to run a case of this kind: add a line 'run: ...'")

    def words(self, template, places):
        """Returns the words of a header's command line, with its places filled in. A place that is
        empty leaves no word."""
        filled = ((word, word.format(**places)) for word in shlex.split(template))
        return [now for word, now in filled if now or not word]

    def version(self, places):
        """Returns the version as the program names it; empty if it is not installed."""
        command = self.version_command.format(**places)
        shown = subprocess.run(["bash", "-c", command], capture_output=True, text=True, errors="replace")
        lines = (shown.stdout + shown.stderr).strip().splitlines()
        if shown.returncode != 0 or not lines:
            return ""
        number = re.search(r"v?\d+(\.\w+)+", re.sub(r"\(.*?\)", "", lines[0]))
        return number.group() if number else lines[0].strip()


def discover(only=(), large=False, size=None):
    """Returns the cases that `only` names, or all; sorted by file name. With `large` those of the
    class large, at `size` bytes or each at its own size."""
    paths = [path for path in sorted(CASES.iterdir()) if path.is_file() and not path.name.startswith(".")]
    cases = [Case(path) for path in paths]
    twice = {case.name for case in cases if [other.name for other in cases].count(case.name) > 1}
    if twice:
        raise BadCase(f"several files for the case {', '.join(sorted(twice))}")
    if not large:
        cases = [case for case in cases if not case.large_only]
    else:
        cases = [
            Case(case.path, size=size or bytes_of(case.large), variant=variant)
            for case in cases if case.large for variant in (case.variants or {"": ""}).items()
        ]
    names = [case.name for case in cases]
    unknown = set(only) - set(names)
    if unknown:
        raise BadCase(f"no case {', '.join(sorted(unknown))}; there are {', '.join(names)}")
    return [case for case in cases if not only or case.name in only]
