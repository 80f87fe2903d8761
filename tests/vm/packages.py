"""Kernels and programs of the virtual machines, from Debian's packages by the ordinary apt client.

Everything that is made lies in one cache directory (`vm` below driving.cache()) and is used again.
Kernels are kept by series, with a manifest of what was taken; images by the checksum of their
sources. The system's apt lists stay as they are: other suites are read through a configuration with
separate lists.
"""

import contextlib
import dataclasses
import fcntl
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import driving
from architecture import ARCHITECTURES

KEYRING = pathlib.Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# Suites in which each series of kernels is sought; a suite that the mirror does not have is left
# out. The last one is for the case that backports have nothing of Linux 7.
SUITES = ("bullseye", "bookworm", "trixie", "trixie-backports", "forky")
SECURITY_SUITES = ("bullseye-security", "bookworm-security", "trixie-security")


@dataclasses.dataclass(frozen=True)
class Series:
    """A series of kernels: the first of `releases` of which the mirror has one; "7." is the newest
    Linux 7."""

    releases: tuple
    architecture: str = "amd64"
    # The end of the packages' names.
    flavour: str = "cloud-amd64"


SERIES = {
    "5.10": Series(("5.10",)),
    "6.1": Series(("6.1",)),
    "6.12": Series(("6.12",)),
    "7.3": Series(("7.3", "7.")),
    # PREEMPT_RT leaves transparent huge pages out.
    "6.1-rt": Series(("6.1",), flavour="rt-amd64"),
    "arm64-6.1": Series(("6.1",), "arm64", "cloud-arm64"),
    "arm64-6.12": Series(("6.12",), "arm64", "cloud-arm64"),
    "arm64-7.3": Series(("7.3", "7."), "arm64", "cloud-arm64"),
    "arm64-7.3-16k": Series(("7.3", "7."), "arm64", "arm64-16k"),
}
# Series with base pages of 4 KiB, as a case's header may name them.
GROUPS = {
    "x86-64": [name for name, series in SERIES.items() if series.flavour == "cloud-amd64"],
    "arm64": [name for name, series in SERIES.items() if series.flavour == "cloud-arm64"],
}
# DAMON's tool, of pure Python, as PyPI has it: the version and the checksum of its wheel.
DAMO = ("3.4.3", "17bb9be2223d39d960a86a45f4cde4c87848691749425e52858158f40ea2bee7")
# The longest that one step of apt or debootstrap may take, in seconds.
LONGEST_STEP = 1800
TOOLS = {
    "cpio": "cpio",
    "modprobe": "kmod",
    "mke2fs": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "mkfs.btrfs": "btrfs-progs",
    "debootstrap": "debootstrap",
    "apt-get": "apt",
    "dpkg": "dpkg",
    "xz": "xz-utils",
}


class Unavailable(Exception):
    """Reason why a need of the machines is not available here; the text says how to get it."""


def cache():
    """Returns the directory of everything that is made."""
    directory = driving.cache() / "vm"
    directory.mkdir(exist_ok=True)
    return directory


@contextlib.contextmanager
def cache_lock(name="lock"):
    """Holds a lock while something is made in the cache, which two runs may share. Work that takes
    long has a lock by its own name."""
    with open(cache() / name, "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def which(tool):
    """Returns a command's path, also from a directory that only root's PATH has."""
    return shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def require_tools(name):
    """Raises Unavailable if a command is missing that a machine of this architecture needs."""
    architecture = ARCHITECTURES[name]
    cross = "" if architecture.is_host else f"-{architecture.gcc_prefix}"
    tools = TOOLS | {
        architecture.qemu: architecture.qemu_package,
        architecture.tool("gcc"): f"gcc{cross}",
        architecture.tool("strip"): f"binutils{cross}",
    }
    missing = sorted({package for tool, package in tools.items() if not which(tool)})
    if missing:
        kind = "vm" if architecture.is_host else "vm-arm64"
        raise Unavailable(f"not installed: {', '.join(missing)} (as root: scripts/install-deps {kind})")


def call(*command, directory=None, **options):
    """Runs a command to its end and returns its output; raises Unavailable with the command's words
    if it fails."""
    program, *arguments = [str(part) for part in command]
    done = subprocess.run(
        [which(program) or program, *arguments],
        cwd=directory,
        capture_output=True,
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        timeout=LONGEST_STEP,
        check=False,
        **options,
    )
    if done.returncode != 0:
        words = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        raise Unavailable(f"{program} failed with {done.returncode}: {' / '.join(words)}")
    return done.stdout


def digest(*parts):
    """Returns a short name for something made from these parts: texts and the contents of files."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, pathlib.Path):
            with part.open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
        else:
            total.update(hashlib.sha256(part.encode()).digest())
    return total.hexdigest()[:16]


def release_name():
    """Returns the name of the Debian release that runs here. The machines' root has the same, so
    that programs built here run."""
    with contextlib.suppress(OSError):
        fields = dict(line.partition("=")[::2] for line in pathlib.Path("/etc/os-release").read_text().splitlines())
        if fields.get("ID", "").strip('"') == "debian" and "VERSION_CODENAME" in fields:
            return fields["VERSION_CODENAME"].strip('"')
    raise Unavailable("the machines are made from Debian's packages, and this system is no Debian release")


def mirrors():
    """Returns (Debian's mirror, that of its security suites or None), as the system has them
    configured."""
    shown = call("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages").split()
    main = sorted({uri for uri in shown if re.search(r"/debian/?$", uri)})
    security = sorted({uri for uri in shown if re.search(r"/debian-security/?$", uri)})
    if not main:
        raise Unavailable("apt knows no mirror of Debian (apt-get update, with a mirror in /etc/apt)")
    return main[0], security[0] if security else None


def damo():
    """Returns a directory for PYTHONPATH with DAMON's tool in it; downloads the tool the first
    time."""
    version, expected = DAMO
    kept = cache() / f"damo-{version}"
    with cache_lock():
        if not kept.exists():
            with tempfile.TemporaryDirectory(dir=cache()) as made:
                made = pathlib.Path(made)
                call(sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:", "--dest", made,
                     f"damo=={version}")
                wheel = next(made.glob("*.whl"))
                if hashlib.sha256(wheel.read_bytes()).hexdigest() != expected:
                    raise Unavailable(f"{wheel.name} is not the one that is known: its checksum differs")
                shutil.unpack_archive(wheel, made / "damo", "zip")
                (made / "damo").rename(kept)
    return kept


class Apt:
    """The apt client with separate lists, which are fetched at most once for each object."""

    def __init__(self, architecture="amd64"):
        self.architecture = architecture
        self.directory = cache() / f"apt-{architecture}"
        self.configuration = self.directory / "apt.conf"
        self.updated = False
        self.packages = None

    def update(self):
        """Fetches the lists of all suites that the mirror has."""
        if self.updated:
            return
        if not KEYRING.exists():
            raise Unavailable(f"{KEYRING} is missing (apt-get install debian-archive-keyring)")
        for name in ("state/lists/partial", "cache/archives/partial"):
            (self.directory / name).mkdir(parents=True, exist_ok=True)
        main, security = mirrors()
        places = [(main, suite) for suite in dict.fromkeys((*SUITES, release_name()))]
        places += [(security, suite) for suite in SECURITY_SUITES if security]
        sources = self.directory / "sources.list"
        sources.write_text("".join(f"deb [signed-by={KEYRING}] {uri} {suite} main\n" for uri, suite in places))
        self.configuration.write_text(
            f'Dir::Etc::sourcelist "{sources}";\nDir::Etc::sourceparts "/dev/null";\n'
            f'Dir::State "{self.directory}/state";\nDir::State::status "/dev/null";\n'
            f'Dir::Cache "{self.directory}/cache";\nAPT::Architecture "{self.architecture}";\n'
            f'APT::Architectures {{ "{self.architecture}"; }};\nAPT::Sandbox::User "root";\n'
            'Acquire::Languages "none";\nAcquire::Retries "3";\n'
        )
        try:
            self.run("apt-get", "update", "-q")
        except Unavailable as failed:
            # A mirror that lacks a suite makes apt fail, with the others fetched.
            if not list((self.directory / "state/lists").glob("*_Packages*")):
                raise Unavailable(f"no list of packages could be fetched from {main}: {failed}") from failed
        self.updated = True

    def run(self, program, *arguments, directory=None):
        """Runs a command of apt with these lists."""
        return call(program, "-c", self.configuration, *arguments, directory=directory)

    def catalogue(self):
        """Returns {name: fields} of the newest version of each package that may be wanted. Makes
        two calls only, since each call of apt is slow."""
        if self.packages is None:
            flavours = "|".join({series.flavour for series in SERIES.values() if series.architecture == self.architecture})
            pattern = f"^(linux-(image|binary|modules|base)-[0-9].*-({flavours})|busybox-static)$"
            found = self.run("apt-cache", "search", "--names-only", pattern).splitlines()
            names = [line.split(" - ")[0] for line in found]
            self.packages = {}
            for paragraph in self.run("apt-cache", "show", "--no-all-versions", *names).split("\n\n"):
                lines = (line.partition(": ") for line in paragraph.splitlines() if not line.startswith(" "))
                fields = {key: value for key, _, value in lines}
                self.packages.setdefault(fields.get("Package", ""), fields)
        return self.packages

    def download(self, package, directory):
        """Fetches a package, which apt checks against its signed list; returns its fields."""
        directory.mkdir(parents=True, exist_ok=True)
        self.run("apt-get", "download", "-q", package, directory=directory)
        return self.catalogue()[package]


def newer(one, other):
    """Returns true if a package's version is later than another one."""
    return subprocess.run(["dpkg", "--compare-versions", one, "gt", other], check=False).returncode == 0


def newest_kernel(apt, series):
    """Returns (package, version) of the newest kernel, from the first release of a series that has
    one."""
    for release in series.releases:
        found = None
        # 6.1 is not 6.12.
        end = "" if release.endswith(".") else r"(?!\d)"
        wanted = re.compile(rf"linux-image-{re.escape(release)}{end}.*-{re.escape(series.flavour)}$")
        for package, fields in apt.catalogue().items():
            if wanted.match(package) and (found is None or newer(fields["Version"], found[1])):
                found = (package, fields["Version"])
        if found:
            return found
    names = " or ".join(series.releases)
    raise Unavailable(f"the mirror has no kernel of Linux {names} ({series.flavour})")


def pieces(apt, package):
    """Returns the packages of a kernel: itself, and those of the same build that it needs (from
    Linux 7 on there are three)."""
    flavour = package.removeprefix("linux-image-")
    wanted, found = [package], []
    while wanted:
        name = wanted.pop()
        found.append(name)
        fields = apt.catalogue()[name]
        depends = fields.get("Depends", "") + "," + fields.get("Pre-Depends", "")
        for need in (part.split()[0] for part in depends.split(",") if part.strip()):
            if need.endswith("-" + flavour) and need not in found + wanted:
                wanted.append(need)
    return found


@functools.cache
def apt_for(architecture):
    return Apt(architecture)


def kernel(name, refresh=False):
    """Returns the directory of the kernel of a series: vmlinuz, config, usr/lib/modules, and
    manifest.json (what was taken)."""
    directory = cache() / "kernels" / name
    manifest = directory / "manifest.json"
    with cache_lock():
        if manifest.exists() and not refresh:
            return directory
        apt = apt_for(SERIES[name].architecture)
        apt.update()
        package, version = newest_kernel(apt, SERIES[name])
        if manifest.exists() and json.loads(manifest.read_text())["version"] == version:
            return directory
        print(f"vm: taking Linux {name} from {package} {version}", flush=True)
        with tempfile.TemporaryDirectory(dir=cache()) as made:
            tree = pathlib.Path(made) / "tree"
            taken = {}
            for piece in pieces(apt, package):
                fields = apt.download(piece, pathlib.Path(made) / "debs")
                taken[piece] = fields["SHA256"]
            for deb in sorted((pathlib.Path(made) / "debs").glob("*.deb")):
                call("dpkg", "-x", deb, tree)
            release = unpacked(tree)
            made_from = {"package": package, "version": version, "release": release, "sha256": taken}
            (tree / "manifest.json").write_text(json.dumps(made_from, indent=1) + "\n")
            shutil.rmtree(directory, ignore_errors=True)
            directory.parent.mkdir(parents=True, exist_ok=True)
            tree.rename(directory)
    return directory


def unpacked(tree):
    """Lays an unpacked kernel out as depmod wants it, and as this suite looks it up; returns its
    release."""
    tree.chmod(0o755)
    if (tree / "lib/modules").is_dir():
        (tree / "usr/lib").mkdir(parents=True, exist_ok=True)
        (tree / "lib/modules").rename(tree / "usr/lib/modules")
        shutil.rmtree(tree / "lib")
    (tree / "lib").symlink_to("usr/lib")
    release = next((tree / "usr/lib/modules").iterdir()).name
    for name, places in {
        "vmlinuz": (f"boot/vmlinuz-{release}", f"usr/lib/modules/{release}/vmlinuz"),
        "config": (f"boot/config-{release}", f"usr/lib/modules/{release}/config"),
    }.items():
        for place in places:
            if (tree / place).exists():
                (tree / name).symlink_to(place)
                break
    if not (tree / "vmlinuz").exists():
        raise Unavailable(f"no kernel image in the packages of {release}")
    call("depmod", "-b", tree, release)
    return release


def taken(directory):
    """Returns the package and version in a kernel's directory, for people."""
    manifest = json.loads((directory / "manifest.json").read_text())
    return f"{manifest['package']} {manifest['version']}"


def busybox(architecture):
    """Returns a static busybox for the initial file system."""
    target = cache() / f"busybox-{architecture}"
    with cache_lock():
        if not target.exists():
            apt = apt_for(architecture)
            apt.update()
            with tempfile.TemporaryDirectory(dir=cache()) as made:
                apt.download("busybox-static", pathlib.Path(made))
                call("dpkg", "-x", next(pathlib.Path(made).glob("*.deb")), made)
                shutil.copy(next(pathlib.Path(made).glob("**/bin/busybox")), target)
    return target


def make_image(image, tree, room):
    """Makes an ext4 image of a directory, with `room` bytes beyond it. A failure leaves no
    image."""
    used = int(call("du", "-s", "--block-size=1", tree).split()[0])
    part = image.with_suffix(f".{os.getpid()}")
    try:
        with part.open("wb") as file:
            file.truncate((used + used // 10 + room) & ~0xFFF)
        call("mke2fs", "-q", "-F", "-t", "ext4", "-d", tree, part)
        part.rename(image)
    finally:
        part.unlink(missing_ok=True)
