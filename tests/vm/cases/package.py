# title: the Debian package on a machine with systemd: install, enable, status, disable, trial, remove, as a transcript
# init: systemd
# kernels: 6.12
# quick: 6.12
# seconds: 400
"""From the package to huge pages under redis-server in three commands, and back to a machine that knows nothing of it.

The file of results has what was typed and printed (`transcript`)."""

import contextlib
import os
import pathlib
import shlex
import time

import truth
import vmcheck as vm

ROW = "package (systemd)"
PACKAGES = pathlib.Path("/opt/megapage/packages")
# The kernel's own, and what belongs to a run of systemd.
ROOTS = ("/etc", "/usr", "/var/lib")
PASSING = ("/var/lib/dpkg/", "/var/lib/redis/", "/var/lib/systemd/", "/etc/ld.so.cache", "/etc/mtab")


def files():
    return {str(path) for root in ROOTS for path in pathlib.Path(root).rglob("*") if not str(path).startswith(PASSING)}


# A user's: what the package has put there, and nothing of the tests'.
USUAL = {name: value for name, value in os.environ.items() if not name.startswith("MEGAPAGE_")} | {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
}
LOAD = ("redis-benchmark", "-t", "get", "-r", "300000", "-n", "1000000000", "-P", "16", "-q")


def typed(command, allowed=(0,)):
    """A line as a user types it, and what came of it."""
    done = vm.run(shlex.split(command), 200, env=USUAL)
    vm.record(event="said", text=f"# {command}\n{done.out}{done.err}")
    vm.orderly(ROW, command, done, allowed)
    return done


def main_pid():
    return int(vm.run("systemctl show redis-server --property=MainPID --value").out.strip() or 0)


def filled():
    script = "for i = 0, 299999 do redis.call('set', 'key:' .. i, string.rep('x', 300)) end"
    done = vm.run(["redis-cli", "eval", script, "0"], 120)
    vm.check(ROW, "redis-server holds its values", done.status == 0 and "ERR" not in done.out, done.words, "(nil)")


packages = sorted(PACKAGES.glob("megapage_*.deb"))
if not packages:
    vm.skip(ROW, "there is no package of this build: scripts/packages deb makes it")
else:
    vm.run("systemctl unmask redis-server; mkdir -p /var/lib/redis /var/log/redis; chown redis: /var/lib/redis /var/log/redis")
    vm.run("systemctl start redis-server", 120)
    before = files()
    began = time.monotonic()
    typed(f"dpkg --install {packages[0]}")
    typed("megapage enable redis-server --now")
    filled()
    typed("megapage status redis-server")
    seconds = time.monotonic() - began
    vm.check(ROW, "from the package to huge pages in under two minutes", seconds < 120, f"{seconds:.0f} s", "120 s")
    true = truth.backing(main_pid())
    vm.check(ROW, "redis-server is on huge pages", true.thp > 64 * vm.MIB and true.thp > 0.8 * true.total, true.thp, true.total)
    told = vm.value(vm.run("megapage status redis-server --json", env=USUAL).json, "services", 0, "services", 0)
    vm.same(ROW, "status: its huge memory", vm.value(told, "memory", "thp_bytes"), true.thp, within=8 * vm.MIB)
    # Huge from within, it has nothing that a trial could make base: it is tried as it was.
    typed("megapage disable redis-server --now")
    maps = pathlib.Path(f"/proc/{main_pid()}/maps")
    vm.check(ROW, "redis-server runs without the library", "libmegapage" not in maps.read_text(), "libmegapage", "none")
    filled()
    with vm.Child(*LOAD):
        # What it decides is a matter of the machine below; that it ends, says it and switches within its bounds is not.
        tried = typed("megapage trial redis-server --period 500ms --most 30s", allowed=(0, 1))
        vm.check(ROW, "the trial says what it has found", "redis-server" in tried.out, tried.words, "a report")
    answer = vm.run("redis-cli get key:299999")
    vm.check(ROW, "the data are whole", answer.out.strip() == "x" * 300, answer.words, "x...")
    typed("dpkg --purge megapage")
    left = sorted(files() - before)
    vm.check(ROW, "nothing is left of it", not left, left, [])
    vm.check(ROW, "redis-server still answers", vm.run("redis-cli ping").out.strip() == "PONG", "", "PONG")
    with contextlib.suppress(OSError):
        pathlib.Path("/var/lib/redis/dump.rdb").unlink()
    vm.run("systemctl stop redis-server", 120)
