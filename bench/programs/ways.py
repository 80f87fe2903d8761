"""The ways to run a program that the bench compares, and the settings of the machine that each
needs."""

import contextlib
import json
import os
import pathlib
import re
import sys

sys.path.append(str(pathlib.Path(__file__).resolve().parent.parent.parent / "tests"))
import driving

MM = pathlib.Path("/sys/kernel/mm")
BASELINE, OURS, OTHER, TUNED, BEST = "plain", "ours", "other", "thp-tuned", "best"
ENABLED = "transparent_hugepage/enabled"
KHUGEPAGED = "transparent_hugepage/khugepaged"
# Settings that all ways start from.
USUAL = {ENABLED: "madvise"}
# Bytes of a page, by the directory of its pool.
POOLS = {"hugepages-2048kB": 2 << 20, "hugepages-1048576kB": 1 << 30}


class Way:
    """One way to run a program."""

    def __init__(self, name, what, variables=None, library=None, settings=None, build=None, options=(), pool=None,
                 peer=None):
        self.name, self.what, self.variables = name, what, variables or {}
        self.library = library
        # Files below /sys/kernel/mm, and what they hold during each run.
        self.settings = settings or {}
        # The `megapage` that runs the program, and the options of its `run`.
        self.build, self.options = build, options
        # The pool that holds what the program takes, during each run.
        self.pool = pool
        # Its name in the tables of docs/lab.md, which a test compares.
        self.peer = peer

    def missing(self):
        """Returns the reason if the way is not available here, else None."""
        if self.library and not self.library.exists():
            return f"{self.library} is missing: run bench/programs/install.py"
        for name, word in self.needs(0).items():
            if not (MM / name).exists():
                return f"this kernel has no {MM / name}"
            if os.getuid() != 0 and (self.pool or chosen((MM / name).read_text()) != word):
                return f"needs root to change {MM / name}"
        return None

    def environment(self):
        preload = {"LD_PRELOAD": str(self.library)} if self.library else {}
        return {**preload, **self.variables}

    def needs(self, size):
        """Returns the machine's settings for a run that takes `size` bytes."""
        pool = {f"hugepages/{self.pool}/nr_hugepages": str(-(-size // POOLS[self.pool]))} if self.pool else {}
        return {**USUAL, **self.settings, **pool}


def all_ways(venv, megapage, other=None, large=False):
    """Returns every way, in the order of the tables; those of the class large with `large`. `other`
    is a build of megapage to compare with `megapage`."""
    libraries = pathlib.Path("/usr/lib")
    mimalloc = next(iter(sorted(venv.glob("lib/python3*/site-packages/cmeel.prefix/lib/libmimalloc.so.3"))),
                    venv / "libmimalloc.so.3")
    jemalloc = next(libraries.glob("*-linux-gnu/libjemalloc.so.2"), libraries / "libjemalloc.so.2")
    plain = Way(BASELINE, "as it is", peer="glibc")
    tunable = Way("tunable", "glibc.malloc.hugetlb=1", {"GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"}, peer="glibc-thp")
    always = Way("thp-always", "THP enabled=always for the whole machine", settings={ENABLED: "always"}, peer="thp-always")
    others = [
        # Without a pool of hugetlb pages this option makes mimalloc advise the kernel to use THP
        # for its arenas.
        Way("mimalloc", "mimalloc 3, MIMALLOC_ALLOW_LARGE_OS_PAGES=1", {"MIMALLOC_ALLOW_LARGE_OS_PAGES": "1"},
            library=mimalloc, peer="mimalloc3-large"),
        Way("jemalloc", "jemalloc 5, MALLOC_CONF=thp:always,metadata_thp:auto",
            {"MALLOC_CONF": "thp:always,metadata_thp:auto"}, library=jemalloc, peer="jemalloc-metadata"),
    ]
    ours = [Way(OURS, "megapage run, no options", build=megapage, peer="megapage")]
    if other:
        ours.append(Way(OTHER, "another build of megapage, no options", build=other))
    if not large:
        # The class small keeps its ways.
        return [plain, tunable, always, *others, *ours]
    cache = pathlib.Path(os.environ.get("XDG_CACHE_HOME") or pathlib.Path.home() / ".cache")
    settings = {"pages_to_scan": "1048576", "scan_sleep_millisecs": "0", "alloc_sleep_millisecs": "0", "max_ptes_none": "511"}
    return [
        plain,
        tunable,
        Way(TUNED, "THP enabled=always, khugepaged without a pause",
            settings={ENABLED: "always", **{f"{KHUGEPAGED}/{name}": value for name, value in settings.items()},
                      "transparent_hugepage/shrink_underused": "1"}, peer="thp-hard"),
        Way("mthp-64k", "folios of 64 KiB always, 2 MiB where advised",
            settings={"transparent_hugepage/hugepages-64kB/enabled": "always"}),
        *others[:1],
        Way("mimalloc-thp", "mimalloc 3, MIMALLOC_ALLOW_THP=2", {"MIMALLOC_ALLOW_THP": "2"}, library=mimalloc),
        *others[1:],
        Way("jemalloc-hpa", "jemalloc 5, MALLOC_CONF=hpa:true,thp:always,metadata_thp:auto",
            {"MALLOC_CONF": "hpa:true,thp:always,metadata_thp:auto"}, library=jemalloc, peer="jemalloc-hpa"),
        # `megapage-lab install` builds it.
        Way("tcmalloc-google", "Google's tcmalloc, which advises huge pages by itself",
            library=cache / "megapage/peers/built/libgoogle_tcmalloc.so", peer="tcmalloc-google"),
        # Stands for another way, which may differ by program.
        Way(BEST, "the best other way of the program, by the last results of all ways"),
        *ours,
        Way("ours-2m", "megapage run, with a pool of 2 MiB pages", build=megapage, pool="hugepages-2048kB", peer="megapage"),
        Way("ours-1g", "megapage run --heap 1g, with a pool of 1 GiB pages", build=megapage, options=("--heap", "1g"),
            pool="hugepages-1048576kB", peer="megapage-1g"),
    ]


def chosen(text):
    """Returns the word in brackets of a setting of sysfs; its whole text if it has none."""
    found = re.search(r"\[([\w+]+)\]", text)
    return found.group(1) if found else text.strip()


class Refused(Exception):
    """A setting that the kernel did not take, and what it has instead."""


class Settings:
    """The machine's settings of huge pages, changed for one run at a time.

    The end of each run restores the former ones, whatever ends the run. SIGKILL and power cuts
    prevent that: the journal then lets the next start of the driver restore them.
    """

    def __init__(self, journal, root=MM):
        self.journal, self.root = journal, root

    def recover(self):
        """Restores the settings that a killed driver left changed; returns them, or None."""
        if not self.journal.exists():
            return None
        before = json.loads(self.journal.read_text())
        self.restore(before)
        return before

    def restore(self, before):
        for name, word in before.items():
            (self.root / name).write_text(word)
        self.journal.unlink(missing_ok=True)

    def now(self, name):
        if name.endswith("/nr_hugepages"):
            return str(driving.persistent_pages((self.root / name).parent))
        return chosen((self.root / name).read_text())

    @contextlib.contextmanager
    def set_to(self, wanted):
        """Sets `wanted`, words by file, for as long as the block lasts. Raises Refused if the
        kernel takes another value, as for a pool that memory does not suffice for."""
        before = {name: self.now(name) for name, word in wanted.items() if self.now(name) != word}
        if not before:
            yield
            return
        self.journal.parent.mkdir(parents=True, exist_ok=True)
        self.journal.write_text(json.dumps(before))
        try:
            for name in before:
                (self.root / name).write_text(wanted[name])
                if self.now(name) != wanted[name]:
                    raise Refused(f"{self.root / name} is {self.now(name)}, not {wanted[name]}")
            yield
        finally:
            self.restore(before)
