"""The ways to run a program that the bench compares, and the setting of THP that each needs."""

import contextlib
import pathlib
import re

THP = pathlib.Path("/sys/kernel/mm/transparent_hugepage/enabled")
BASELINE, OURS, OTHER = "plain", "ours", "other"


class Way:
    """One way to run a program."""

    def __init__(self, name, what, variables=None, library=None, thp="madvise", build=None):
        self.name, self.what, self.variables = name, what, variables or {}
        self.library, self.thp = library, thp
        # The `megapage` that runs the program.
        self.build = build

    def missing(self):
        """Returns the reason if the way is not available here, else None."""
        if self.library and not self.library.exists():
            return f"{self.library} is missing: run bench/programs/install.py"
        return None

    def environment(self):
        preload = {"LD_PRELOAD": str(self.library)} if self.library else {}
        return {**preload, **self.variables}


def all_ways(venv, megapage, other=None):
    """Returns every way, in the order of the tables; `other` is a build of megapage to compare with
    `megapage`."""
    mimalloc = next(iter(sorted(venv.glob("lib/python3*/site-packages/cmeel.prefix/lib/libmimalloc.so.3"))), None)
    jemalloc = next((path for path in pathlib.Path("/usr/lib").glob("*-linux-gnu/libjemalloc.so.2")), None)
    others = [Way(OTHER, "another build of megapage, no options", build=other)] if other else []
    return [
        Way(BASELINE, "as it is"),
        Way("tunable", "glibc.malloc.hugetlb=1", {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}),
        Way("thp-always", "THP enabled=always for the whole machine", thp="always"),
        # Without a pool of hugetlb pages this option makes mimalloc advise the kernel to use THP
        # for its arenas.
        Way("mimalloc", "mimalloc 3, MIMALLOC_ALLOW_LARGE_OS_PAGES=1", {"MIMALLOC_ALLOW_LARGE_OS_PAGES": "1"},
            library=mimalloc or venv / "libmimalloc.so.3"),
        Way("jemalloc", "jemalloc 5, MALLOC_CONF=thp:always,metadata_thp:auto",
            {"MALLOC_CONF": "thp:always,metadata_thp:auto"},
            library=jemalloc or pathlib.Path("/usr/lib/libjemalloc.so.2")),
        Way(OURS, "megapage run, no options", build=megapage),
        *others,
    ]


def chosen(text):
    """Returns the word in brackets of a setting of sysfs."""
    found = re.search(r"\[(\w+)\]", text)
    return found.group(1) if found else text.strip()


class ThpSetting:
    """The machine's THP setting, changed for one run at a time.

    The end of each run restores the former setting, whatever ends the run. SIGKILL and power cuts
    prevent that: the journal then lets the next start of the driver restore it.
    """

    def __init__(self, journal, file=THP):
        self.journal, self.file = journal, file

    def recover(self):
        """Restores the setting that a killed driver left changed; returns its word, or None."""
        if not self.journal.exists():
            return None
        word = self.journal.read_text().strip()
        self.file.write_text(word)
        self.journal.unlink()
        return word

    @contextlib.contextmanager
    def set_to(self, word):
        """Sets THP to `word` for as long as the block lasts."""
        before = chosen(self.file.read_text())
        if before == word:
            yield
            return
        self.journal.parent.mkdir(parents=True, exist_ok=True)
        self.journal.write_text(before)
        try:
            self.file.write_text(word)
            yield
        finally:
            self.file.write_text(before)
            self.journal.unlink(missing_ok=True)
