# title: the Debian package on a machine with systemd: install, enable, status, disable, trial, remove, as a transcript
# init: systemd
# kernels: 6.12
# quick: 6.12
# seconds: 400
# needs: package
"""From the package to huge pages under redis-server in three commands, and back to the former
machine.

The file of results has the input and the output (`transcript`)."""

import contextlib
import os
import pathlib
import shlex
import shutil
import time

import truth
import vmcheck as vm

ROW = "package (systemd)"
PACKAGES = pathlib.Path("/opt/megapage/packages")
# Directories of a package's files, and paths below them that change by themselves.
ROOTS = ("/etc", "/usr", "/var/lib")
PASSING = ("/var/lib/dpkg/", "/var/lib/redis/", "/var/lib/systemd/", "/etc/ld.so.cache", "/etc/mtab")


def files():
    """Returns every file with its content; directories and links have none."""
    found = (path for root in ROOTS for path in pathlib.Path(root).rglob("*") if not str(path).startswith(PASSING))
    return {str(path): path.read_bytes() if path.is_file() and not path.is_symlink() else b"" for path in found}


# A user's environment: the package's files, and none of the tests'.
USUAL = {name: value for name, value in os.environ.items() if not name.startswith("MEGAPAGE_")} | {
    # Other cases of this boot have copied their files to /usr/local.
    "PATH": "/usr/sbin:/usr/bin:/sbin:/bin"
}
LOAD = ("redis-benchmark", "-t", "get", "-r", "300000", "-n", "1000000000", "-P", "16", "-q")


def typed(command, allowed=(0,)):
    """Runs a line as a user types it, and returns its outcome."""
    done = vm.run(shlex.split(command), 200, env=USUAL)
    vm.record(event="transcript", text=f"# {command}\n{done.out}{done.err}")
    vm.orderly(ROW, command, done, allowed)
    return done


def main_pid():
    return int(vm.run("systemctl show redis-server --property=MainPID --value").out.strip() or 0)


def filled():
    script = "for i = 0, 299999 do redis.call('set', 'key:' .. i, string.rep('x', 300)) end"
    done = vm.run(["redis-cli", "eval", script, "0"], 120)
    vm.check(ROW, "redis-server holds its values", done.status == 0 and "ERR" not in done.out, done.words, "(nil)")


package = next(PACKAGES.glob("megapage_*.deb"))
vm.run("systemctl unmask redis-server; mkdir -p /var/lib/redis /var/log/redis; chown redis: /var/lib/redis /var/log/redis")
vm.run("systemctl start redis-server", 120)
before = files()
began = time.monotonic()
typed(f"dpkg --install {package}")
vm.same(ROW, "the command is the package's", shutil.which("megapage", path=USUAL["PATH"]), "/usr/bin/megapage")
typed("megapage enable redis-server --now")
loaded = pathlib.Path(f"/proc/{main_pid()}/maps").read_text()
vm.check(ROW, "the library is the package's", "/usr/lib/megapage/libmegapage.so" in loaded, loaded[:300], "/usr/lib/megapage")
filled()
typed("megapage status redis-server")
vm.record(event="transcript", text=f"(the three commands and the values between them: {time.monotonic() - began:.0f} s)\n")
true = truth.backing(main_pid())
vm.check(ROW, "redis-server is on huge pages", true.thp > 64 * vm.MIB and true.thp > 0.8 * true.total, true.thp, true.total)
told = vm.value(vm.run("megapage status redis-server --json", env=USUAL).json, "services", 0, "services", 0)
vm.same(ROW, "status: its huge memory", vm.value(told, "memory", "thp_bytes"), true.thp, within=8 * vm.MIB)
# Huge memory from the library leaves a trial nothing that it could make base. So the trial runs
# without the library.
typed("megapage disable redis-server --now")
maps = pathlib.Path(f"/proc/{main_pid()}/maps")
vm.check(ROW, "redis-server runs without the library", "libmegapage" not in maps.read_text(), "libmegapage", "none")
filled()
with vm.Child(*LOAD):
    # An emulated machine is too slow for a measurement. Checks that the trial ends, says so and
    # restores the memory.
    tried = typed("megapage trial redis-server --period 500ms --most 30s --revert-always", allowed=(0, 1))
    vm.check(ROW, "the trial says what it moved", "made huge and base in turns" in tried.out, tried.words, "a report")
    after = truth.backing(main_pid())
    vm.check(ROW, "its memory is base again", after.thp < 16 * vm.MIB, after.thp, "less than 16 MiB")
answer = vm.run("redis-cli get key:299999")
vm.check(ROW, "the data are whole", answer.out.strip() == "x" * 300, answer.words, "x...")
typed("dpkg --purge megapage")
after = files()
changed = sorted(path for path in before.keys() | after.keys() if before.get(path) != after.get(path))
vm.check(ROW, "the files are as before", not changed, changed, [])
vm.check(ROW, "redis-server still answers", vm.run("redis-cli ping").out.strip() == "PONG", "", "PONG")
with contextlib.suppress(OSError):
    pathlib.Path("/var/lib/redis/dump.rdb").unlink()
vm.run("systemctl stop redis-server", 120)
