"""Clean roots: a small Debian in a directory, and commands in it that see the machine's /proc and
/sys."""

import os
import pathlib
import shlex
import shutil
import subprocess
import tempfile

import driving

# Packages that are there before ours. Python is for python3-megapage, whose dependencies dpkg asks
# for.
PACKAGES = "python3,python3-numpy"
# Limit in seconds for a registry that does not answer.
LONGEST_S = 600
# Mounts by which a command in a root sees the machine, in a mount namespace that ends with the
# command.
MOUNTS = 'mount --rbind /proc "$0/proc" && mount --rbind /sys "$0/sys" && mount --rbind /dev "$0/dev" && '


class Unavailable(Exception):
    """Reason why a clean root, or a tool of a case, is not available here."""


class Failed(Exception):
    """Failure of a command that should have succeeded, with its output."""


def call(*command, cwd=None, environment=None, seconds=300, status=0):
    """Runs a command and returns its output; raises Failed unless it ends with `status`."""
    done = subprocess.run([str(word) for word in command], cwd=cwd, env=dict(os.environ, **(environment or {})),
                          stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=seconds)
    if done.returncode != status:
        said = (done.stdout + done.stderr).strip()[-1500:]
        raise Failed(f"{shlex.join(map(str, command))}: status {done.returncode}: {said}")
    return done.stdout


class Roots:
    """Clean roots below a directory, copied from one of each release that is made once."""

    def __init__(self, directory):
        self.directory, self.first, self.why_not = pathlib.Path(directory), {}, {}

    def make(self, name, codename=None, include=PACKAGES):
        """Makes a new clean root: of this machine's release, or of the Debian release
        `codename`."""
        if os.geteuid() != 0:
            raise Unavailable("a clean root takes root")
        root = self.directory / name
        call("cp", "-a", "--reflink=auto", self.clean(codename or release(), include), root)
        return Root(root)

    def clean(self, codename, include):
        if codename in self.why_not:
            raise self.why_not[codename]
        if codename not in self.first:
            try:
                self.first[codename] = self.made(codename, include)
            except Unavailable as error:
                self.why_not[codename] = error
                raise
        return self.first[codename]

    def made(self, codename, include):
        if not shutil.which("mmdebstrap"):
            raise Unavailable("there is no mmdebstrap (scripts/install-deps packages)")
        sources = self.directory / "clean.list"
        shown = call("apt-get", "indextargets", "--format", "$(REPO_URI) $(CODENAME)", "Created-By: Packages")
        mirror = next((line.split() for line in shown.splitlines() if release() in line.split()), None)
        if not mirror:
            raise Unavailable(f"apt knows no mirror of Debian {release()}")
        sources.write_text(f"deb {mirror[0]} {codename} main\n")
        # Named by its contents: it is made once for all runs.
        root = driving.cache() / f"clean-root-{codename}-{include.replace(',', '-')}"
        if root.exists():
            return root
        made = pathlib.Path(tempfile.mkdtemp(prefix="clean.", dir=driving.cache()))
        made.chmod(0o755)
        try:
            # Without translations; mmdebstrap itself removes apt's lists.
            call("mmdebstrap", "--mode=root", "--variant=apt", f"--include={include}", "--aptopt=Acquire::Retries 3",
                 "--dpkgopt=path-exclude=/usr/share/locale/*", codename, made, sources, seconds=LONGEST_S)
        except (Failed, subprocess.TimeoutExpired) as error:
            shutil.rmtree(made, ignore_errors=True)
            raise Unavailable(f"no clean root: {error}") from error
        # Without /run/systemd maintainer scripts see that systemd does not run.
        shutil.rmtree(made / "run/systemd", ignore_errors=True)
        # systemd and procps bring this directory; a purge leaves it.
        (made / "etc/sysctl.d").mkdir(exist_ok=True)
        made.rename(root)
        return root


def release():
    for line in pathlib.Path("/etc/os-release").read_text().splitlines():
        if line.startswith("VERSION_CODENAME="):
            return line.partition("=")[2].strip('"')
    raise Unavailable("this is no Debian")


class Root:
    """One clean root."""

    def __init__(self, path):
        self.path = path

    def __truediv__(self, name):
        return self.path / str(name).lstrip("/")

    def run(self, *command, status=0, seconds=120):
        """Runs a command in the root and returns its output; mounts end with the command."""
        environment = {"LC_ALL": "C.UTF-8", "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
                       "DEBIAN_FRONTEND": "noninteractive"}
        return self.mounted('exec chroot "$0" "$@"', *command, environment=environment, status=status, seconds=seconds)

    def mounted(self, script, *arguments, **how):
        """Runs a script of the machine with the mounts of the root ($0) in place."""
        return call("unshare", "--mount", "--propagation=private", "sh", "-c", MOUNTS + script, self.path, *arguments, **how)

    def shell(self, script, status=0):
        return self.run("sh", "-euc", script, status=status)

    def bring(self, *files):
        """Copies files to the root's /tmp; returns their paths there."""
        for file in files:
            shutil.copy(file, self / "tmp")
        return [f"/tmp/{pathlib.Path(file).name}" for file in files]

    def entries(self):
        """Returns every file and directory, except those that change by themselves."""
        skipped = ("/proc", "/sys", "/dev", "/tmp", "/run", "/var/log", "/var/cache", "/var/lib/dpkg", "/var/lib/rpm", "/root")
        found = set()
        for directory, names, files in os.walk(self.path):
            inside = "/" + os.path.relpath(directory, self.path).lstrip(".").lstrip("/")
            names[:] = [name for name in names if os.path.join(inside, name) not in skipped and name != "__pycache__"]
            found.update(os.path.join(inside, name) for name in names + files)
        return found
