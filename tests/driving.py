"""Functions shared by the drivers of tests: the machine, the command, and a run's frame."""

import argparse
import contextlib
import fcntl
import os
import pathlib
import shutil
import signal
import sys
import tempfile

REPOSITORY = pathlib.Path(__file__).resolve().parent.parent
# The pool of 2 MiB pages.
POOL = pathlib.Path("/sys/kernel/mm/hugepages/hugepages-2048kB")
# The lock that the Rust tests take before they change the machine (lab/testing).
LOCK_FILE = pathlib.Path(tempfile.gettempdir()) / "megapage-test.lock"
# Memory that stays available to other programs, in KiB.
LEAST_AVAILABLE_KIB = 2 << 20


def cache():
    """Returns the directory of downloads and builds that all work trees and runs share:
    MEGAPAGE_CACHE, else one below the user's cache directory."""
    user = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
    directory = pathlib.Path(os.environ.get("MEGAPAGE_CACHE", user / "megapage-build")).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    return directory


def memory_available_kib():
    for line in pathlib.Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1])
    return 0


def persistent_pages(pool=POOL):
    """Returns the pool's pages without surplus, which is the number that a write to the pool sets.
    Once the pool has shrunk, pages of programs that have not ended yet count as surplus. Reads until
    two readings agree: a program may end between them."""
    figure = lambda name: int((pool / name).read_text())
    total, surplus = figure("nr_hugepages"), figure("surplus_hugepages")
    while total != (again := figure("nr_hugepages")):
        total, surplus = again, figure("surplus_hugepages")
    return total - surplus


@contextlib.contextmanager
def machine_lock(shared=False):
    """Holds the machine's lock while the pool is changed. Work that must not take pages of a
    changing pool holds it shared."""
    # Opens an existing file without O_CREAT: for another user's file in a directory for all,
    # O_CREAT is refused (protected_regular).
    with open(LOCK_FILE, "r" if LOCK_FILE.exists() else "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def without_pool():
    """Takes the pool's free pages and its overcommit away, under the machine's lock, and puts them
    back."""
    with machine_lock():
        value = lambda name: int((POOL / name).read_text())
        before = {}
        if os.getuid() == 0 and POOL.exists():
            before = {"nr_overcommit_hugepages": value("nr_overcommit_hugepages"), "nr_hugepages": persistent_pages()}
        try:
            for name, pages in before.items():
                if pages:
                    (POOL / name).write_text("0")
            yield 0
        finally:
            # A test may have added pages meanwhile.
            for name, pages in before.items():
                if pages or value(name):
                    (POOL / name).write_text(str(pages))


def parser(description):
    """Returns a parser of the arguments that all drivers take."""
    parser = argparse.ArgumentParser(description=description)
    default = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")) / "release/megapage"
    parser.add_argument("--megapage", type=pathlib.Path, default=default, help="default: %(default)s")
    parser.add_argument("--keep", action="store_true", help="keep the scratch directory")
    return parser


@contextlib.contextmanager
def scratch(name, arguments):
    """Makes a directory for the run, with the command under prefix/; removes it at the end, unless
    --keep is given."""
    directory = pathlib.Path(tempfile.mkdtemp(prefix=f"megapage-{name}."))
    directory.chmod(0o755)
    # A signal unwinds as an exception, so that the pool is put back.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    # A shell starts background jobs with SIGINT ignored, and programs would inherit that.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        install(arguments.megapage.resolve(), directory / "prefix")
        yield directory
    finally:
        if arguments.keep:
            print(f"kept {directory}", file=sys.stderr)
        else:
            shutil.rmtree(directory, ignore_errors=True)


def install(megapage, prefix):
    """Copies the command and its libraries where any user may read them, laid out as `make install`
    does."""
    libraries = [megapage.parent / name for name in ("libmegapage.so", "libmegapage_text.so")]
    for source, target in [(megapage, "bin")] + [(library, "lib/megapage") for library in libraries]:
        target = prefix / target / source.name
        if not source.exists():
            sys.exit(f"driver: {source} is missing: run `cargo build --release`")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source, target)
        target.chmod(0o755)


class Tally:
    """Outcomes of a run, printed as they come."""

    def __init__(self):
        self.counts = {"passed": 0, "failed": 0, "skipped": 0}

    def add(self, columns, what, outcome, why, seconds):
        """Prints one line, and returns (outcome, why) as counted. With MEGAPAGE_NO_SKIP a skip is a
        failure. Else a skip is printed, and noted in the file that MEGAPAGE_SKIPPED names."""
        if outcome == "skipped" and os.environ.get("MEGAPAGE_NO_SKIP"):
            outcome, why = "failed", f"skipped where nothing may be: {why}"
        self.counts[outcome] += 1
        # Further lines are indented: they belong to this one.
        shown = why.replace("\n", "\n        ") if why else ""
        print(f"{outcome:7} {columns} {seconds:6.1f} s" + (f"  {shown}" if shown else ""), flush=True)
        if outcome == "skipped" and os.environ.get("MEGAPAGE_SKIPPED"):
            with open(os.environ["MEGAPAGE_SKIPPED"], "a") as skipped:
                skipped.write(f"{what}: {why}\n")
        return outcome, why

    def close(self):
        """Prints the last line and returns the exit status."""
        print("{passed} passed, {failed} failed, {skipped} skipped".format(**self.counts))
        return 0 if self.counts["failed"] == 0 and sum(self.counts.values()) > 0 else 1
