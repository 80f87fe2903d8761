"""One virtual machine: its disks, qemu's command line, and what it says while it runs."""

import contextlib
import dataclasses
import fcntl
import json
import os
import pathlib
import shutil
import subprocess
import tempfile
import threading
import time

import host
import initial
import packages
from architecture import ARCHITECTURES

HERE = pathlib.Path(__file__).resolve().parent
TESTS = HERE.parent
BINARIES = (
    "megapage",
    "libmegapage.so",
    "libmegapage_text.so",
    "libmegapage_c.so",
)
# The laboratory's program, of a release or a debug build.
WORKLOAD = "megapage-lab-workload"
# Programs of the cases, compiled here: (name, source, options of the compiler).
PROGRAMS = (
    ("holder", "holder.c", ("-O1", "-pthread")),
    ("holder-static", "holder.c", ("-O1", "-pthread", "-static")),
    ("bigcode", "bigcode.c", ("-O1", "-Wl,-z,max-page-size=0x200000")),
    ("bigcode-plain", "bigcode.c", ("-O1", "-Wl,-z,max-page-size=0x1000")),
    ("fragment", "fragment.c", ("-O1",)),
    ("sharers", "../../programs/src/shared.c", ("-O1",)),
)
# A record begins with this; other lines are words of programs.
MARK = "@@ "
# Seconds that a machine may take until its first record: emulated, on a busy host.
LONGEST_BOOT = 240
# Attempts to start a machine that dies or says nothing before its first record.
BOOT_ATTEMPTS = 3
# All running processes of qemu; and an event that is set when the run is to end.
RUNNING, ENDING = set(), threading.Event()
# Lines of the console that are kept of a machine.
LAST_WORDS = 25


@dataclasses.dataclass(frozen=True)
class Spec:
    """Properties of a machine; cases with equal ones share a boot."""

    kernel: str
    memory: str = "2G"
    cpus: int = 2
    numa: int = 1
    swap: str = ""
    data: str = ""
    cgroup: str = "2"
    thp: str = "madvise"
    append: str = ""
    init: str = "plain"
    backing: str = ""

    def title(self):
        """Returns a title for people: the kernel, and the unusual properties."""
        usual = Spec(self.kernel)
        other = [
            f"{field.name} {getattr(self, field.name)}"
            for field in dataclasses.fields(self)
            if getattr(self, field.name) != getattr(usual, field.name)
        ]
        return ", ".join([f"Linux {self.kernel}", *other])


def size(text):
    """Returns the bytes of a size such as 512M or 2G."""
    return int(text[:-1]) * {"K": 1 << 10, "M": 1 << 20, "G": 1 << 30}[text[-1]]


@contextlib.contextmanager
def slot():
    """Waits for one of MEGAPAGE_VM_JOBS slots (two) for machines on this host, and holds it. Slots
    are locks named MEGAPAGE_VM_SLOTS.1 and so on."""
    prefix = os.environ.get("MEGAPAGE_VM_SLOTS", str(packages.cache() / "slot"))
    while not ENDING.is_set():
        for number in range(1, jobs() + 1):
            with open(f"{prefix}.{number}", "a") as lock:
                try:
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                except BlockingIOError:
                    continue
                yield
                return
        time.sleep(0.5)
    yield


def end_all():
    """Ends every machine and prevents new ones; for a signal."""
    ENDING.set()
    for guest in list(RUNNING):
        guest.kill()


def clear():
    """Removes the scratch directories of killed runs, whose names have their process's number."""
    for left in packages.cache().glob("run-*-*"):
        if not pathlib.Path(f"/proc/{left.name.split('-')[1]}").exists():
            shutil.rmtree(left, ignore_errors=True)


def jobs():
    """Returns how many machines run at once."""
    return max(1, int(os.environ.get("MEGAPAGE_VM_JOBS", "2")))


def accelerator(kernel, architecture):
    """Returns `kvm` if a kernel really boots with it, else `tcg`: /dev/kvm may be there and not
    work (nested, or filtered)."""
    if not architecture.is_host:
        return "tcg"
    answer = packages.cache() / f"accelerator-{packages.digest(os.uname().release, os.uname().version)}"
    with packages.cache_lock():
        if not answer.exists():
            answer.write_text("kvm" if kvm_boots(kernel, architecture) else "tcg")
    return answer.read_text().strip()


def kvm_boots(kernel, architecture):
    """Returns true if a machine without disks gets as far as the panic for want of a root, which
    ends qemu."""
    if not os.access("/dev/kvm", os.R_OK | os.W_OK):
        return False
    command = [packages.which(architecture.qemu), "-accel", "kvm", *architecture.native, "-cpu", "host", "-m", "512",
               "-nodefaults", "-display", "none", "-no-reboot", "-serial", "stdio", "-kernel",
               str((kernel / "vmlinuz").resolve()), "-append", f"console={architecture.console} panic=-1"]
    try:
        done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False)
    except (subprocess.TimeoutExpired, OSError):
        return False
    return done.returncode == 0 and b"Unable to mount root" in done.stdout


def binaries(release):
    """Returns the files of a build."""
    workloads = [directory / WORKLOAD for directory in (release, release.parent / "debug")]
    return [*(release / name for name in BINARIES), next((file for file in workloads if file.exists()), workloads[0])]


def missing_binaries(release):
    """Returns the names of the files that a machine needs and that were not built."""
    return [file.name for file in binaries(release) if not file.exists()]


def outdated_binaries(release):
    """Returns true if the build is older than its sources, by cargo's own list of these; false
    without a list."""
    try:
        listed = (release / "megapage.d").read_text().partition(": ")[2]
    except OSError:
        return False
    sources = [source.replace("\0", " ") for source in listed.replace("\\ ", "\0").split()]
    built = (release / "megapage").stat().st_mtime
    return any(not os.path.exists(source) or os.path.getmtime(source) > built for source in sources)


def packages_of(release, architecture):
    """Returns the Debian packages of a build; none if they were not made since."""
    built = max((release / name).stat().st_mtime for name in BINARIES)
    made = (release.parent / "packages").glob(f"megapage_*_{architecture.debian}.deb")
    return sorted(path for path in made if path.stat().st_mtime >= built)


def binaries_disk(release, architecture):
    """Returns the disk with the build and the cases' programs; makes a new one when any of them
    changed."""
    files = binaries(release)
    sources = sorted({HERE / "guest" / source for _, source, _ in PROGRAMS})
    python = sorted((HERE.parent.parent / "python/megapage").glob("*.py"))
    units = sorted((HERE.parent.parent / "dist").rglob("*"))
    sources += [HERE.parent.parent / "examples/restart.c", HERE.parent.parent / "include/megapage.h"]
    packed = packages_of(release, architecture)
    sources += [HERE / "matrix.py", *sorted(TESTS.glob("*.py")), *sorted((TESTS / "harm").glob("*.*"))]
    sources += [path for part in ("cases", "src") for path in sorted((TESTS / "harm" / part).iterdir())]
    everything = [*files, *sources, *python, *packed, *(path for path in units if path.is_file())]
    disk = packages.cache() / f"megapage-{architecture.debian}-{packages.digest(repr(PROGRAMS), *everything)}.ext4"
    gcc, strip = architecture.tool("gcc"), architecture.tool("strip")
    with packages.cache_lock():
        if disk.exists():
            os.utime(disk)
            return disk
        with tempfile.TemporaryDirectory(dir=packages.cache()) as made:
            tree = pathlib.Path(made) / "tree"
            tree.mkdir(mode=0o755)
            for file in files:
                packages.call(strip, "--strip-debug", "-o", tree / file.name, file)
                (tree / file.name).chmod(0o755)
            (tree / "libmegapage_c.so.0").symlink_to("libmegapage_c.so")
            repository = HERE.parent.parent
            packages.call(gcc, "-O1", "-I", repository / "include", "-o", tree / "restart",
                          repository / "examples/restart.c", tree / "libmegapage_c.so", "-Wl,-rpath,/opt/megapage")
            for name, source, options in PROGRAMS:
                packages.call(gcc, *options, "-o", tree / name, HERE / "guest" / source)
            shutil.copytree(HERE.parent.parent / "python/megapage", tree / "python/megapage",
                            ignore=shutil.ignore_patterns("__pycache__"))
            shutil.copytree(HERE.parent.parent / "dist", tree / "dist")
            if architecture.is_host:
                harm_tests(tree / "tests")
            (tree / "packages").mkdir()
            for package in packed:
                shutil.copy(package, tree / "packages")
            packages.make_image(disk, tree, 32 << 20)
        # Keeps the last three older builds, for a bisection.
        kept = packages.cache().glob(f"megapage-{architecture.debian}-*.ext4")
        for old in sorted(kept, key=lambda path: path.stat().st_mtime)[:-4]:
            old.unlink(missing_ok=True)
    return disk


def harm_tests(tree):
    """Copies the programs of tests/harm that run in machines. The files that their scripts make
    once are made here: machines have no compiler."""
    ignored = shutil.ignore_patterns("__pycache__", "results")
    shutil.copytree(TESTS / "harm", tree / "harm", ignore=ignored)
    for file in (*TESTS.glob("*.py"), HERE / "matrix.py"):
        target = tree / file.relative_to(TESTS)
        target.parent.mkdir(exist_ok=True)
        shutil.copy(file, target)
    same = {}
    for script in sorted((TESTS / "harm/cases").glob("*.sh")):
        text = script.read_text()
        if "# machine: yes" not in text or "$SCRATCH" not in text:
            continue
        made = tree / "made" / script.stem
        made.mkdir(parents=True)
        with tempfile.TemporaryDirectory() as work:
            variables = dict(os.environ, RUN="true", MODE="plain", SCRATCH=str(made), WORK=work, SRC=str(TESTS / "harm/src"))
            subprocess.run(["bash", "-eu", script], cwd=work, env=variables, stdin=subprocess.DEVNULL, capture_output=True,
                           timeout=120, check=False)
        for file in made.iterdir():
            kept = same.setdefault(file.read_bytes(), file)
            if kept != file:
                file.unlink()
                os.link(kept, file)


def emulator(architecture, accel, memory, cpus, kernel, initrd, append, console):
    """Returns qemu's command line except disks and nodes; the guest's records are on its standard
    output."""
    board = (*architecture.native, "-cpu", "host") if accel == "kvm" else architecture.emulated
    speed = ("-accel", "kvm") if accel == "kvm" else ("-accel", "tcg,thread=multi,tb-size=256")
    words = [f"console={architecture.console}", "panic=-1", "quiet", "loglevel=4", f"vm.records={architecture.records}"]
    if accel == "tcg":
        words += architecture.append
    return [
        "nice", "-n", "5", packages.which(architecture.qemu), *speed, *board,
        "-smp", f"{cpus},sockets={cpus}", "-m", str(memory >> 20), "-no-reboot", "-nodefaults",
        "-display", "none", "-kernel", str((kernel / "vmlinuz").resolve()), "-initrd", str(initrd),
        "-append", " ".join([*words, *append]).strip(),
        "-serial", f"file:{console}", *architecture.channel,
    ]


class Machine:
    """A machine to be booted with a plan: cases in order. `megapage` is the host's own command."""

    def __init__(self, spec, root, disk, megapage):
        self.spec, self.root, self.disk, self.megapage = spec, root, disk, megapage
        self.architecture = ARCHITECTURES[packages.SERIES[spec.kernel].architecture]
        self.kernel = packages.kernel(spec.kernel)
        self.accel = accelerator(self.kernel, self.architecture)
        self.console = ""

    def command(self, plan, work):
        """Returns qemu's command line."""
        spec = self.spec
        memory = size(spec.memory)
        append = [f"vm.cgroup={spec.cgroup}", f"vm.init={spec.init}"]
        if spec.cgroup == "1":
            append.append("systemd.unified_cgroup_hierarchy=0")
        if spec.thp != "kernel":
            append.append(f"transparent_hugepage={spec.thp}")
        initrd = initial.archive(self.kernel, self.architecture, plan, work)
        command = emulator(self.architecture, self.accel, memory, spec.cpus, self.kernel, initrd, [*append, spec.append],
                           work / "console")
        disks = [("root", self.root), ("megapage", self.disk)]
        if spec.swap:
            disks.append(("swap", self.blank(work / "swap.raw", spec.swap)))
        if spec.data:
            kind, _, much = spec.data.partition(":")
            packages.call(f"mkfs.{kind}", "-q", self.blank(work / "data.raw", much))
            disks.append(("data", work / "data.raw"))
        for name, path in disks:
            command += [
                "-drive", f"id={name},file={path},format=raw,if=none,snapshot=on,file.locking=off",
                "-device", f"virtio-blk-pci,drive={name},serial={name}",
            ]
        if spec.numa > 1:
            for node in range(spec.numa):
                cpus = "".join(f",cpus={cpu}" for cpu in range(spec.cpus) if cpu % spec.numa == node)
                command += [
                    "-object", host.memory_object(spec.backing, f"m{node}", memory // spec.numa),
                    "-numa", f"node,nodeid={node},memdev=m{node}{cpus}",
                ]
        elif spec.backing:
            command += ["-object", host.memory_object(spec.backing, "m", memory), "-machine", "memory-backend=m"]
        if spec.backing:
            command += ["-qmp", f"unix:{work / 'monitor'},server=on,wait=off"]
        return [*host.launcher(spec.backing), *command]

    @staticmethod
    def blank(path, much):
        """Makes an empty file for a disk."""
        with path.open("wb") as file:
            file.truncate(size(much))
        return path

    def run(self, plan, on_record):
        """Boots and gives each record to `on_record`. Returns how it ended: `done`, `died`,
        `silent` or `timeout`.

        A machine that says nothing before its first record is started again: emulators fail that
        way, and none of our programs ran yet."""
        for attempt in range(BOOT_ATTEMPTS):
            ended, records = self.once(plan, on_record)
            if records or attempt + 1 == BOOT_ATTEMPTS or ENDING.is_set():
                return ended if records else "silent"
        raise AssertionError("BOOT_ATTEMPTS is at least 1")

    def once(self, plan, on_record):
        """Boots once; returns how it ended, and the number of records."""
        with tempfile.TemporaryDirectory(prefix=f"run-{os.getpid()}-", dir=packages.cache()) as made, slot():
            work = pathlib.Path(made)
            with host.prepared(self.spec.backing, size(self.spec.memory), self.megapage):
                if ENDING.is_set():
                    return "died", 0
                return self.watched(plan, work, on_record)

    def watched(self, plan, work, on_record):
        """Starts qemu, and ends it; returns how it ended, and the number of records."""
        guest = subprocess.Popen(self.command(plan, work), stdout=subprocess.PIPE,
                                 stdin=subprocess.PIPE if self.spec.backing else subprocess.DEVNULL)
        RUNNING.add(guest)
        # Time until which the machine may be silent, moved on by each record.
        deadline = [time.monotonic() + LONGEST_BOOT]
        ended, records = "died", 0
        finished = threading.Event()

        def watch():
            while not finished.wait(0.5):
                if time.monotonic() > deadline[0]:
                    finished.set()
                    guest.kill()
                    return

        watcher = threading.Thread(target=watch, daemon=True)
        watcher.start()
        try:
            for line in guest.stdout:
                text = line.decode(errors="replace").rstrip("\r\n")
                if not text.startswith(MARK):
                    continue
                try:
                    record = json.loads(text[len(MARK):])
                except ValueError:
                    continue
                records += 1
                if record["event"] == "ask":
                    self.tell(guest, work, record["pages"])
                    continue
                deadline[0] = time.monotonic() + record.get("patience", LONGEST_BOOT)
                if record["event"] == "done":
                    ended = "done"
                on_record(record)
            timed_out = finished.is_set()
        finally:
            finished.set()
            guest.kill()
            guest.wait()
            RUNNING.discard(guest)
            watcher.join()
            guest.stdout.close()
            if guest.stdin:
                guest.stdin.close()
            with contextlib.suppress(OSError):
                lines = (work / "console").read_text(errors="replace").splitlines()
                self.console = "\n".join(lines[-LAST_WORDS:])
        if timed_out and ended != "done":
            ended = "timeout"
        return ended, records

    def tell(self, guest, work, pages):
        """Answers a question of the guest's about its huge pages."""
        line = host.answer_line(guest.pid, work / "monitor", size(self.spec.memory), pages)
        with contextlib.suppress(OSError):
            guest.stdin.write(line.encode())
            guest.stdin.flush()
