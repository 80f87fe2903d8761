"""Kernels and the root file system of the virtual machines, from Debian's packages by the ordinary apt client.

Everything that is made lies in one cache directory (`target/vm`, or MEGAPAGE_VM_DIR) and is used again: kernels by series
with a manifest of what was taken, images by the checksum of what they are made from. The system's apt lists stay as they
are: the suites beside the system's own are read through a configuration with lists of its own.
"""

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
KEYRING = pathlib.Path("/usr/share/keyrings/debian-archive-keyring.gpg")
# Where each series of kernels is looked for; a suite that the mirror does not have is left out. The last two are for when
# backports have nothing of Linux 7.
SUITES = ("bullseye", "bookworm", "trixie", "trixie-backports", "forky")
SECURITY_SUITES = ("bullseye-security", "bookworm-security", "trixie-security")
# Series that are tried: the first one of a tuple of which the mirror has a kernel; "7." is the newest Linux 7.
SERIES = {"5.10": ("5.10",), "6.1": ("6.1",), "6.12": ("6.12",), "7.3": ("7.3", "7.")}
# On top of Debian's minimal system. systemd is there for the cases that boot it.
ROOT_PACKAGES = (
    "python3,redis-server,redis-tools,sqlite3,procps,kmod,numactl,util-linux,strace,systemd,systemd-sysv,iproute2,libnuma1"
)
# The longest that one step of apt or debootstrap may take, in seconds.
LONGEST_STEP = 1800
TOOLS = {
    "qemu-system-x86_64": "qemu-system-x86",
    "cpio": "cpio",
    "modprobe": "kmod",
    "mke2fs": "e2fsprogs",
    "mkfs.xfs": "xfsprogs",
    "mkfs.btrfs": "btrfs-progs",
    "debootstrap": "debootstrap",
    "apt-get": "apt",
    "dpkg": "dpkg",
    "strip": "binutils",
    "gcc": "gcc",
    "xz": "xz-utils",
}


class Unavailable(Exception):
    """What the machines need is not to be had here; the text says what, and how to get it."""


def cache():
    """The directory of everything that is made."""
    target = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", HERE.parent.parent / "target"))
    directory = pathlib.Path(os.environ.get("MEGAPAGE_VM_DIR", target / "vm")).absolute()
    directory.mkdir(parents=True, exist_ok=True)
    return directory


@contextlib.contextmanager
def cache_lock():
    """Held while something is made in the cache: two runs may share it."""
    with open(cache() / "lock", "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def which(tool):
    """A command's path, also where only root's PATH has its directory."""
    return shutil.which(tool, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")


def require_tools(kind):
    """Refuses where a command is missing that a machine of this kind needs."""
    tools = dict(TOOLS)
    if kind == "arm64":
        tools["qemu-system-aarch64"] = "qemu-system-arm"
        del tools["qemu-system-x86_64"]
    missing = sorted({package for tool, package in tools.items() if not which(tool)})
    if missing:
        raise Unavailable(f"not installed: {', '.join(missing)} (as root: scripts/install-deps vm)")


def call(*command, directory=None, **options):
    """Runs a command to its end and gives its output; a failure says what it said."""
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
    """A short name for what something is made from: texts and the contents of files."""
    total = hashlib.sha256()
    for part in parts:
        if isinstance(part, pathlib.Path):
            with part.open("rb") as file:
                total.update(hashlib.file_digest(file, "sha256").digest())
        else:
            total.update(hashlib.sha256(part.encode()).digest())
    return total.hexdigest()[:16]


def release_name():
    """The name of the Debian release that runs here: the machines' root has the same, so that programs built here run."""
    with contextlib.suppress(OSError):
        fields = dict(line.partition("=")[::2] for line in pathlib.Path("/etc/os-release").read_text().splitlines())
        if fields.get("ID", "").strip('"') == "debian" and "VERSION_CODENAME" in fields:
            return fields["VERSION_CODENAME"].strip('"')
    raise Unavailable("the machines are made from Debian's packages, and this system is no Debian release")


def mirrors():
    """(Debian's mirror, that of its security suites or None), as the system has them configured."""
    shown = call("apt-get", "indextargets", "--format", "$(REPO_URI)", "Created-By: Packages").split()
    main = sorted({uri for uri in shown if re.search(r"/debian/?$", uri)})
    security = sorted({uri for uri in shown if re.search(r"/debian-security/?$", uri)})
    if not main:
        raise Unavailable("apt knows no mirror of Debian (apt-get update, with a mirror in /etc/apt)")
    return main[0], security[0] if security else None


class Apt:
    """The apt client with lists of its own; they are fetched at most once for each object."""

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
        """A command of apt's with these lists."""
        return call(program, "-c", self.configuration, *arguments, directory=directory)

    def catalogue(self):
        """{name: fields} of the newest version of each package that may be wanted; two calls, as each of apt's is slow."""
        if self.packages is None:
            pattern = f"^(linux-(image|binary|modules|base)-[0-9].*-cloud-{self.architecture}|busybox-static)$"
            found = self.run("apt-cache", "search", "--names-only", pattern).splitlines()
            names = [line.split(" - ")[0] for line in found]
            self.packages = {}
            for paragraph in self.run("apt-cache", "show", "--no-all-versions", *names).split("\n\n"):
                lines = (line.partition(": ") for line in paragraph.splitlines() if not line.startswith(" "))
                fields = {key: value for key, _, value in lines}
                self.packages.setdefault(fields.get("Package", ""), fields)
        return self.packages

    def download(self, package, directory):
        """Fetches a package, which apt checks against its signed list; gives its fields."""
        directory.mkdir(parents=True, exist_ok=True)
        self.run("apt-get", "download", "-q", package, directory=directory)
        return self.catalogue()[package]


def newer(one, other):
    """Whether a package's version is later than another one."""
    return subprocess.run(["dpkg", "--compare-versions", one, "gt", other], check=False).returncode == 0


def newest_kernel(apt, names):
    """(package, version) of the newest kernel of the first series of which there is one."""
    for series in names:
        found = None
        # 6.1 is not 6.12.
        wanted = re.compile(rf"linux-image-{re.escape(series)}" + ("" if series.endswith(".") else r"(?!\d)"))
        for package, fields in apt.catalogue().items():
            if wanted.match(package) and (found is None or newer(fields["Version"], found[1])):
                found = (package, fields["Version"])
        if found:
            return found
    raise Unavailable(f"the mirror has no kernel of Linux {' or '.join(names)} for {apt.architecture}")


def pieces(apt, package):
    """The packages that a kernel is in: itself, and what it needs of the same build (from Linux 7 on there are three)."""
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


def kernel(name, refresh=False, architecture="amd64"):
    """The directory of the kernel of a series: vmlinuz, config, usr/lib/modules, and manifest.json (what was taken)."""
    directory = cache() / ("kernels" if architecture == "amd64" else f"kernels-{architecture}") / name
    manifest = directory / "manifest.json"
    with cache_lock():
        if manifest.exists() and not refresh:
            return directory
        apt = apt_for(architecture)
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
    """Lays an unpacked kernel out as depmod wants it, and as it is looked up here; gives its release."""
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
    """What a kernel's directory holds, for people."""
    manifest = json.loads((directory / "manifest.json").read_text())
    return f"{manifest['package']} {manifest['version']}"


def busybox(architecture="amd64"):
    """A static busybox for the initial file system."""
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
    """An ext4 image of a directory, with so many bytes of room beyond it; whole, or not there."""
    used = int(call("du", "-s", "--block-size=1", tree).split()[0])
    part = image.with_suffix(f".{os.getpid()}")
    try:
        with part.open("wb") as file:
            file.truncate((used + used // 10 + room) & ~0xFFF)
        call("mke2fs", "-q", "-F", "-t", "ext4", "-d", tree, part)
        part.rename(image)
    finally:
        part.unlink(missing_ok=True)


def root():
    """The machines' root disk: Debian's minimal system of this release, with ROOT_PACKAGES. No run changes it."""
    suite = release_name()
    image = cache() / f"root-{digest(suite, ROOT_PACKAGES)}.ext4"
    with cache_lock():
        if image.exists():
            return image
        if os.getuid() != 0:
            raise Unavailable("making the machines' root file system takes root, once (debootstrap)")
        print(f"vm: making the root file system (Debian {suite})", flush=True)
        main, _ = mirrors()
        with tempfile.TemporaryDirectory(dir=cache()) as made:
            tree = pathlib.Path(made) / "root"
            call("debootstrap", "--variant=minbase", f"--include={ROOT_PACKAGES}", suite, tree, main)
            for pattern in ("var/cache/apt/archives/*.deb", "var/lib/apt/lists/*", "usr/share/doc/*",
                            "usr/share/locale/*", "usr/share/man/*"):
                for path in tree.glob(pattern):
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
            for name in ("vm", "data", "opt/megapage", "lib/modules"):
                (tree / name).mkdir(parents=True, exist_ok=True)
            # The cases start their own; nothing else of the packages' is to run in a machine.
            for unit in ("redis-server.service", "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer",
                         "e2scrub_all.timer", "fstrim.timer", "systemd-timesyncd.service"):
                mask = tree / "etc/systemd/system" / unit
                mask.unlink(missing_ok=True)
                mask.symlink_to("/dev/null")
            make_image(image, tree, 768 << 20)
    return image
