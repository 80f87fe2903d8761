#!/usr/bin/env python3
"""Driver that makes the packages (scripts/packages) and tries each: installed, used and removed in
a clean root, one line for each case.

    build      the packages are made of the files that `make build` has left
    lintian    Debian's own judge finds no error and no warning
    deb        installed, used, reinstalled, removed, purged: services off, pools returned, nothing
               left
    dbgsym     the debugging symbols are those of the installed files
    rpm        the same as deb, by rpm, into a root with a separate data base
    tarball    the program starts in an otherwise empty root, and the whole works below /usr/local
    bullseye   the same tarball works in Debian 11, whose glibc is 2.31: libraries load, and a heap
               is on huge pages
    wheel      pip installs it; it works without any other package of ours; types and library are
               inside
    crates     the crates that cargo would publish are whole, and described
    image      the container image is made and run, and lends the command to a clean root
    kubernetes the manifests fit Kubernetes' schemas, and start megapage as it can be started

Needs root for clean roots; a case that cannot run is skipped, loudly. Closes with "N passed, N
failed, N skipped".
"""

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path.append(str(HERE.parent))
import driving
from containers import expect, image, kubernetes
from roots import Failed, Roots, Unavailable, call

PERSISTED = "etc/sysctl.d/60-megapage.conf"
# A program that fills a heap with its input, and is the same everywhere.
SORT = "seq 400000 | megapage run --json --report - -- sort -S 64M -o /dev/null"
ARRAY = """
import megapage
values = megapage.array(1 << 19)
values[:] = 1
backing = megapage.backing(values)
assert backing.thp + backing.base == values.nbytes, backing
print(megapage.version())
"""
# Requirements that an RPM may have on a system with glibc.
REQUIRED = re.compile(r"^(/bin/sh|/sbin/ldconfig|rpmlib\(.*|rtld\(GNU_HASH\)|lib(c|m|gcc_s|pthread|dl)\.so\.\d(\(.*|$)|ld-linux-.*|"
                      r"libmegapage_c\.so\.0\(.*|megapage-libs\b.*|config\(megapage\) = .*|/usr/bin/pkg-config|pkgconfig)")


def pool(*counts):
    return sum(int((driving.POOL / f"{count}_hugepages").read_text()) for count in counts or ["nr"])


def in_use():
    """Returns the pages of the pool that programs have, or that are reserved for them."""
    return pool("nr", "resv") - pool("free")


LONGEST_USE = 300  # seconds


def expect_released(remove, pages):
    """Removes the package. Checks that the pool then has `pages` pages, and at most those that
    programs of other tests use besides."""
    until = time.monotonic() + LONGEST_USE
    while pool("free") - pool("resv") < 2 and time.monotonic() < until:
        time.sleep(0.2)
    remove()
    # A program may have taken some since.
    expect(pages <= pool() <= pages + in_use(), f"the removal left {pool()} pages in the pool, not {pages}; {in_use()} are in use")


class Bench:
    """State that the cases share."""

    def __init__(self, arguments, scratch):
        self.release = arguments.megapage.resolve().parent
        self.directory = self.release.parent / "packages"
        self.scratch, self.roots = scratch, Roots(scratch)

    def environment(self):
        """Returns the variables for scripts, which so take the files that were built with the
        command."""
        return {"CARGO_TARGET_DIR": str(self.release.parent), "GENERATOR": str(self.release / "megapage")}

    def found(self, pattern, count=1):
        files = sorted(self.directory.glob(pattern))
        expect(len(files) == count, f"{self.directory}/{pattern}: {len(files)} files, not {count}; the case build makes them")
        return files

    def version(self):
        for line in (driving.REPOSITORY / "Cargo.toml").read_text().splitlines():
            if line.startswith("version = "):
                return line.split('"')[1]
        raise Failed("Cargo.toml names no version")


def use(root, bench):
    """Checks that the command works, wherever it is installed."""
    expect(bench.version() in root.run("megapage", "--version"), "another version is installed")
    report = json.loads(root.shell(SORT))
    expect("preload" in report["mechanisms"], f"the library was not preloaded: {report['considered']}")
    root.shell("megapage doctor --json > /tmp/doctor.json || [ $? = 1 ]")
    json.loads((root / "tmp/doctor.json").read_text())
    root.run("megapage", "daemon", "--check-config")


def off(root):
    """Checks that the service is there and disabled: nothing starts by itself."""
    said = subprocess.run(["systemctl", f"--root={root.path}", "is-enabled", "megapage.service"], capture_output=True, text=True)
    expect(said.stdout.strip() == "disabled", f"the service is '{said.stdout.strip()}': {said.stderr}")
    wants = [str(path) for path in (root / "etc/systemd").rglob("*megapage*") if ".wants" in str(path)]
    expect(not wants, f"the service is wanted: {wants}")


UNIT, DROP_IN = "etc/systemd/system/app.service", "etc/systemd/system/app.service.d/50-megapage.conf"


def enabled(root):
    """Puts a service on huge pages, as an administrator of the root would."""
    (root / UNIT).parent.mkdir(parents=True, exist_ok=True)
    (root / UNIT).write_text("[Service]\nExecStart=/usr/bin/env sleep 60\n")
    root.run("megapage", "enable", "app")
    expect((root / DROP_IN).exists(), "the service is not enabled")


def released(root):
    """Checks that the removal of the package disabled the service, whose drop-in would name missing
    files."""
    expect(not (root / DROP_IN).parent.exists(), "the removal left a service enabled")
    (root / UNIT).unlink()


@contextlib.contextmanager
def kept_pool(root):
    """Adds two pages to the pool, kept over a reboot by megapage, as an administrator of the root
    would. Restores the pool at the end."""
    with driving.machine_lock():
        before = driving.persistent_pages()
        try:
            root.run("megapage", "pool", "persist", "2m=2", "--apply")
            expect((root / PERSISTED).exists(), "the pool is not kept")
            root.run("megapage", "pool", "set", "2MB:+2")
            expect(driving.persistent_pages() == before + 2, "the pool did not grow")
            yield before
        finally:
            (driving.POOL / "nr_hugepages").write_text(f"{before}\n")


def build(bench):
    call(driving.REPOSITORY / "scripts/packages", cwd=driving.REPOSITORY, environment=bench.environment(), seconds=1200)


def lintian(bench):
    if not shutil.which("lintian"):
        raise Unavailable("there is no lintian (scripts/install-deps packages)")
    call("lintian", "--fail-on", "error,warning", "--allow-root", *bench.found("*.deb", 6))


def deb(bench):
    root = bench.roots.make("deb")
    before = root.entries()
    files = [file for pattern in ("megapage_*.deb", "libmegapage-c0_*.deb", "libmegapage-dev_*.deb", "python3-megapage_*.deb")
             for file in bench.found(pattern)]
    inside = root.bring(*files)
    root.run("dpkg", "-i", *inside)
    off(root)
    use(root, bench)
    for name in ("share/man/man1/megapage-run.1.gz", "share/bash-completion/completions/megapage",
                 "share/zsh/vendor-completions/_megapage", "share/fish/vendor_completions.d/megapage.fish"):
        expect((root / "usr" / name).exists(), f"{name} is not installed")
    expect(root.run("python3", "-c", ARRAY).strip() == bench.version(), "python3-megapage is of another version")
    compiled(root, bench)
    state = root / "var/lib/megapage/daemon.json"
    with kept_pool(root) as pages:
        root.run("dpkg", "-i", *inside)
        state.parent.mkdir(exist_ok=True)
        state.write_text("{}")
        expect((root / PERSISTED).exists(), "an upgrade dropped the pool")
        enabled(root)
        root.run("dpkg", "-i", *inside)
        expect((root / DROP_IN).exists(), "an upgrade took a service off")
        expect_released(lambda: root.run("dpkg", "-r", "megapage"), pages)
        released(root)
        expect(not (root / PERSISTED).exists(), "the removal left the pool to the next boot")
    expect(state.exists() and (root / "etc/megapage/daemon.toml").exists(), "a removal keeps state and configuration")
    root.run("dpkg", "-P", "megapage", "python3-megapage", "libmegapage-dev", "libmegapage-c0")
    left = root.entries() - before
    expect(not left, f"the purge left {sorted(left)}")


def compiled(root, bench):
    """Checks that a foreign program finds its last run's memory. It is compiled with the installed
    header and pkg-config file."""
    if not shutil.which("cc") or not shutil.which("pkg-config"):
        raise Unavailable("there is no C compiler (scripts/install-deps build)")
    where = next(iter(root.path.glob("usr/lib/*/pkgconfig/megapage.pc"))).parent
    flags = call("pkg-config", "--cflags", "--libs", "megapage",
                 environment={"PKG_CONFIG_SYSROOT_DIR": str(root.path), "PKG_CONFIG_LIBDIR": str(where),
                              "PKG_CONFIG_ALLOW_SYSTEM_CFLAGS": "1", "PKG_CONFIG_ALLOW_SYSTEM_LIBS": "1"}).split()
    # Searched after the machine's own headers: those of the root have no C library.
    flags = [flag.replace("-I", "-idirafter") if flag.startswith("-I") else flag for flag in flags]
    call("cc", driving.REPOSITORY / "examples/restart.c", *flags, "-o", root / "tmp/restart")
    (root / "tmp/pool").mkdir()
    first, second = (root.run("/tmp/restart", "/tmp/pool") for _ in range(2))
    expect(first != second, f"the second run found nothing: {second}")


def dbgsym(bench):
    root = bench.roots.make("dbgsym")
    files = [file for pattern in ("megapage_*.deb", "megapage-dbgsym_*.deb") for file in bench.found(pattern)]
    root.run("dpkg", "-i", *root.bring(*files))
    for name in ("usr/bin/megapage", "usr/lib/megapage/libmegapage.so"):
        notes = call("readelf", "-n", root / name)
        identity = re.search(r"Build ID: ([0-9a-f]+)", notes)
        expect(identity, f"{name} has no build-id")
        digits = identity.group(1)
        symbols = root / f"usr/lib/debug/.build-id/{digits[:2]}/{digits[2:]}.debug"
        expect(symbols.exists(), f"{name}: no symbols at {symbols}")
        sections = call("readelf", "-SW", symbols)
        expect(".debug_line" in sections, f"{symbols} has no lines")
        expect(".symtab" not in call("readelf", "-SW", root / name), f"{name} is not stripped")


def rpm(bench):
    if not shutil.which("rpm"):
        raise Unavailable("there is no rpm (scripts/install-deps packages)")
    files = [file for pattern in ("megapage-[0-9]*.rpm", "megapage-libs-*.rpm", "megapage-devel-*.rpm") for file in bench.found(pattern)]
    for file in files:
        for line in call("rpm", "-qp", "--requires", file).splitlines():
            expect(REQUIRED.match(line), f"{file.name} requires {line}")
    root = bench.roots.make("rpm")
    before = root.entries()
    # rpm does not know Debian's packages, hence --nodeps: the requirements were checked above.
    def ours(*arguments):
        return root.mounted('exec rpm --root "$0" --dbpath /var/lib/rpm --force-debian "$@"', *arguments)

    ours("-i", "--nodeps", *files)
    off(root)
    use(root, bench)
    expect((root / "usr/lib64/libmegapage_c.so.0").exists(), "no library")
    ours("-V", "--nodeps", "megapage", "megapage-libs", "megapage-devel")
    with kept_pool(root) as pages:
        (root / "var/lib/megapage").mkdir(exist_ok=True)
        enabled(root)
        expect_released(lambda: ours("-e", "megapage-devel", "megapage-libs", "megapage"), pages)
        released(root)
    # Directories that rpm's own systems have, such as lib64/pkgconfig, belong to no package of
    # ours.
    left = {path for path in root.entries() - before if "megapage" in path or not (root / path).is_dir()}
    expect(not left, f"the removal left {sorted(left)}")


def tarball(bench):
    (file,) = bench.found("megapage-*.tar.xz")
    name = file.name.removesuffix(".tar.xz")
    empty = bench.scratch / "empty"
    for directory in ("proc", "sys", "dev"):
        (empty / directory).mkdir(parents=True)
    call("tar", "-C", empty, "-xf", file)
    program = empty / name / "bin/megapage"
    expect("INTERP" not in call("readelf", "-lW", program), "the program is not static")
    # No C library, no shell, no account: as in a container that has nothing but a static program.
    alone = bench.roots.make("tarball")
    bare = type(alone)(empty)
    expect(bench.version() in bare.run(f"/{name}/bin/megapage", "--version"), "another version")
    bare.run(f"/{name}/bin/megapage", "pool", "list", "--json")
    before = alone.entries()
    call("tar", "-C", alone / "usr/local", "--strip-components=1", "-xf", file)
    use(alone, bench)
    names = [line.partition("/")[2] for line in call("tar", "-tf", file).splitlines()]
    for path in (name for name in names if name and not name.endswith("/")):
        (alone / "usr/local" / path).unlink()
    # The tarball's removal does not remove the findings of trials.
    shutil.rmtree(alone / "var/lib/megapage", ignore_errors=True)
    left = {path for path in alone.entries() - before if not (alone / path).is_dir()}
    expect(not left, f"what the tarball lists is not all: {sorted(left)}")


def bullseye(bench):
    """Checks that programs in Debian 11 (glibc 2.31) get all that the tarball's libraries give,
    with nothing else installed."""
    (file,) = bench.found("megapage-*.tar.xz")
    # Python for its threads.
    root = bench.roots.make("bullseye", "bullseye", "python3-minimal")
    expect("2.31" in root.run("ldd", "--version"), "another glibc")
    call("tar", "-C", root / "usr/local", "--strip-components=1", "-xf", file)
    use(root, bench)
    for library in ("lib/megapage/libmegapage.so", "lib/megapage/libmegapage_text.so", "lib/libmegapage_c.so.0"):
        # LD_BIND_NOW looks up every symbol, not only the called ones. The loader reports what it
        # refuses on standard error.
        said = root.shell(f"LD_BIND_NOW=1 LD_PRELOAD=/usr/local/{library} /bin/true 2>&1")
        expect(not said, f"{library}: {said}")
    report = json.loads(root.shell("seq 3000000 | megapage run --heap thp --json --report - -- sort -S 256M -o /dev/null"))
    heap = report["peak"]["heap"]
    expect(heap["thp_bytes"] >= 64 << 20, f"the heap is not on huge pages: {heap}")
    threads = "import threading; t = threading.Thread(target=print, args=('done',)); t.start(); t.join()"
    said = root.run("megapage", "run", "--mechanism", "preload", "--", "python3", "-c", threads)
    expect(said == "done\n", f"threads: {said}")


def wheel(bench):
    (file,) = bench.found("*.whl")
    expect(re.fullmatch(r"megapage-[0-9.]+-py3-none-manylinux_2_\d+_\w+\.whl", file.name), f"{file.name} is for no platform")
    python = next((python for python in (shutil.which("python3"), "/usr/bin/python3")
                   if python and subprocess.run([python, "-m", "pip", "--version"], capture_output=True).returncode == 0), None)
    if not python:
        raise Unavailable("no Python has pip")
    there = bench.scratch / "venv"
    call(python, "-m", "venv", "--without-pip", there)
    pip = [python, "-m", "pip", "--python", there / "bin/python", "--disable-pip-version-check"]
    call(*pip, "install", "--no-index", "--no-deps", file)
    (package,) = there.glob("lib/python3*/site-packages/megapage")
    for name in ("libmegapage_c.so.0", "py.typed"):
        expect((package / name).exists(), f"the wheel lacks {name}")
    root = bench.roots.make("wheel")
    shutil.copytree(package, root / "opt/megapage", ignore=shutil.ignore_patterns("__pycache__"))
    expect(not list(root.path.glob("usr/lib/*/libmegapage_c*")), "the root is not clean")
    said = root.run("env", "PYTHONPATH=/opt", "python3", "-c", ARRAY)
    expect(said.strip() == bench.version(), f"another version: {said}")
    call(*pip, "uninstall", "--yes", "megapage")
    expect(not package.exists(), "pip left the package")


def crates(bench):
    """Checks the crates that cargo would publish for megapage-segment: whole, with licence,
    description and keywords."""
    del bench
    metadata = json.loads(call("cargo", "metadata", "--format-version", "1", "--no-deps", "--locked", cwd=driving.REPOSITORY))
    packages = {package["name"]: package for package in metadata["packages"]}
    published = {name for name, package in packages.items() if package["publish"] is None}
    open_names, wanted = ["megapage-segment"], set()
    while open_names:
        name = open_names.pop()
        wanted.add(name)
        below = (dependency for dependency in packages[name]["dependencies"] if dependency["kind"] != "dev")
        for dependency in below:
            if dependency["name"] in packages:
                expect(dependency["req"] != "*", f"{name} asks for any {dependency['name']}: give Cargo.toml a version")
                open_names.append(dependency["name"])
    expect(published == wanted, f"published: {sorted(published)}; megapage-segment is built from {sorted(wanted)}")
    for name in sorted(wanted):
        package = packages[name]
        for key in ("description", "license", "repository", "readme", "rust_version", "keywords", "categories"):
            expect(package[key], f"{name} has no {key}")
        expect(len(package["keywords"]) <= 5, f"{name} has more than five keywords")
        listed = call("cargo", "package", "--list", "--allow-dirty", "--locked", "-p", name, cwd=driving.REPOSITORY).split()
        for file in ("Cargo.toml", "README.md", "src/lib.rs"):
            expect(file in listed, f"{name} would be published without {file}")


CASES = {case.__name__: case for case in (build, lintian, deb, dbgsym, rpm, tarball, bullseye, wheel, crates, image, kubernetes)}


def main():
    parser = driving.parser("Makes the packages, and tries each in a clean root.")
    parser.add_argument("--only", metavar="CASE,...", help=f"of {', '.join(CASES)}")
    arguments = parser.parse_args()
    names = arguments.only.split(",") if arguments.only else list(CASES)
    unknown = set(names) - set(CASES)
    if unknown:
        sys.exit(f"driver: no case {', '.join(sorted(unknown))}; there are {', '.join(CASES)}")
    tally = driving.Tally()
    with driving.scratch("packages", arguments) as scratch:
        bench = Bench(arguments, scratch)
        for name in names:
            start = time.monotonic()
            try:
                CASES[name](bench)
                outcome, why = "passed", ""
            except Unavailable as error:
                outcome, why = "skipped", str(error)
            except (Failed, OSError, subprocess.TimeoutExpired) as error:
                outcome, why = "failed", str(error)
            tally.add(f"{name:10}", f"packages {name}", outcome, why, time.monotonic() - start)
    return tally.close()


if __name__ == "__main__":
    sys.exit(main())
