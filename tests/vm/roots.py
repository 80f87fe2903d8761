"""The machines' root disks: Debian's minimal system of this release, with ROOT_PACKAGES. No run
changes them."""

import os
import pathlib
import shutil
import subprocess
import tempfile

import initial
import machine
import packages
from architecture import ARCHITECTURES

HERE = pathlib.Path(__file__).resolve().parent
# On top of Debian's minimal system. systemd is there for the cases that boot it.
ROOT_PACKAGES = (
    "python3,redis-server,redis-tools,sqlite3,procps,kmod,numactl,util-linux,strace,systemd,systemd-sysv,iproute2,libnuma1"
)
# The cases start services themselves; no other unit of the packages is to run in a machine.
MASKED = ("redis-server.service", "apt-daily.timer", "apt-daily-upgrade.timer", "dpkg-db-backup.timer",
          "e2scrub_all.timer", "fstrim.timer", "systemd-timesyncd.service")
# Files of no use in a machine.
REMOVED = ("var/cache/apt/archives/*.deb", "var/lib/apt/lists/*", "usr/share/doc/*", "usr/share/locale/*", "usr/share/man/*")
# Seconds that the scripts of another architecture's packages may take: each of their commands is
# emulated.
LONGEST_CONFIGURATION = 3600
ROOM = 768 << 20


def image_of(name):
    """Returns the path of the root disk of an architecture, which may not exist yet."""
    parts = [packages.release_name(), ROOT_PACKAGES]
    if name != "amd64":
        parts += [name, HERE / "guest/configure"]
    return packages.cache() / f"root-{packages.digest(*parts)}.ext4"


def root(name, kernel):
    """Returns the root disk of an architecture; makes it the first time. Another architecture's
    packages are configured in a machine with this kernel: nothing of the host is registered or
    changed for it."""
    architecture = ARCHITECTURES[name]
    suite, image = packages.release_name(), image_of(name)
    with packages.cache_lock(f"root-{name}.lock"):
        if image.exists():
            return image
        if os.getuid() != 0:
            raise packages.Unavailable("making the machines' root file system takes root, once (debootstrap)")
        print(f"vm: making the root file system (Debian {suite}, {name})", flush=True)
        mirror, _ = packages.mirrors()
        with tempfile.TemporaryDirectory(dir=packages.cache()) as made:
            tree = pathlib.Path(made) / "root"
            foreign = [] if architecture.is_host else ["--foreign"]
            packages.call("debootstrap", f"--arch={name}", *foreign, "--variant=minbase", f"--include={ROOT_PACKAGES}",
                          suite, tree, mirror)
            for directory in ("vm", "data", "opt/megapage", "lib/modules", "etc/systemd/system"):
                (tree / directory).mkdir(parents=True, exist_ok=True)
            for directory in ("proc", "sys", "dev"):
                # In a container debootstrap links to the host's, until its second stage.
                if (tree / directory).is_symlink():
                    (tree / directory).unlink()
                    (tree / directory).mkdir()
            for unit in MASKED:
                mask = tree / "etc/systemd/system" / unit
                mask.unlink(missing_ok=True)
                mask.symlink_to("/dev/null")
            if architecture.is_host:
                for path in (path for pattern in REMOVED for path in tree.glob(pattern)):
                    shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
                packages.make_image(image, tree, ROOM)
                return image
            part = pathlib.Path(made) / "root.ext4"
            # The packages are still to be unpacked, to about three times their size.
            packages.make_image(part, tree, ROOM + (1 << 30))
            shutil.rmtree(tree)
            configure(part, kernel, architecture, pathlib.Path(made))
            part.rename(image)
    return image


def configure(image, kernel, architecture, work):
    """Runs debootstrap's second stage in a machine whose root disk is the image
    (guest/configure)."""
    print(f"vm: configuring its packages in an emulated machine ({architecture.debian}); once, ten to twenty minutes", flush=True)
    initrd = initial.archive(kernel, architecture, [], work)
    console = work / "console"
    command = machine.emulator(architecture, machine.accelerator(kernel, architecture), 1 << 30, 2, kernel, initrd,
                               ["vm.init=configure", f"vm.remove={','.join(REMOVED)}"], console)
    command += ["-drive", f"id=root,file={image},format=raw,if=none,cache=unsafe",
                "-device", "virtio-blk-pci,drive=root,serial=root"]
    with machine.slot():
        if machine.ENDING.is_set():
            raise packages.Unavailable("the run was ended")
        guest = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True, errors="replace")
        machine.RUNNING.add(guest)
        try:
            said, _ = guest.communicate(timeout=LONGEST_CONFIGURATION)
        except subprocess.TimeoutExpired:
            said = f"no end after {LONGEST_CONFIGURATION} s"
        finally:
            guest.kill()
            guest.wait()
            machine.RUNNING.discard(guest)
    if "configured" not in said.split():
        last = console.read_text(errors="replace").splitlines()[-5:] if console.exists() else []
        raise packages.Unavailable(f"the packages of {architecture.debian} were not configured: "
                                   f"{' / '.join(said.splitlines()[-5:] + last)}")
