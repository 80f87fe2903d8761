# title: systemd: the daemon's unit (notify, reload, watchdog, journal), run in units of Type=notify and with DynamicUser
# init: systemd
# seconds: 900
"""Units that dist/systemd installs, under a real systemd."""

import os
import pathlib
import shutil
import signal
import time

import truth
import vmcheck as vm

ROW = "daemon (systemd)"


def show(unit, *names):
    text = vm.run(["systemctl", "show", unit, *(f"--property={name}" for name in names)]).out
    return dict(line.partition("=")[::2] for line in text.splitlines())


def journal(unit):
    return vm.run(["journalctl", "--no-pager", "-o", "cat", "-u", unit]).out


# As `make install` lays it out.
bin_ = pathlib.Path("/usr/local/bin/megapage")
shutil.copy("/opt/megapage/megapage", bin_)
pathlib.Path("/usr/local/lib/megapage").mkdir(parents=True, exist_ok=True)
for library in ("libmegapage.so", "libmegapage_text.so"):
    shutil.copy(f"/opt/megapage/{library}", f"/usr/local/lib/megapage/{library}")
unit = pathlib.Path("/opt/megapage/dist/systemd/megapage.service").read_text().replace("@PREFIX@", "/usr/local")
pathlib.Path("/etc/systemd/system/megapage.service").write_text(unit)
pathlib.Path("/etc/megapage").mkdir(exist_ok=True)
shutil.copy("/opt/megapage/dist/megapage/daemon.toml", "/etc/megapage/daemon.toml")
# The unit's watchdog with a shorter limit: the unit's two minutes are long here.
drop = pathlib.Path("/etc/systemd/system/megapage.service.d")
drop.mkdir(exist_ok=True)
if truth.release() < (6, 7):
    shutil.copy("/opt/megapage/dist/systemd/before-6.7.conf", drop / "before-6.7.conf")
(drop / "quick.conf").write_text("[Service]\nWatchdogSec=20s\nTimeoutStartSec=120s\n")
vm.run("systemctl daemon-reload")
verify = vm.run("systemd-analyze verify /etc/systemd/system/megapage.service")
vm.check(ROW, "the unit is a good one", "megapage.service" not in verify.err, verify.err, "no complaint")

with vm.Holder("--mib", "64", "--mmap", "--touch") as busy:
    started = vm.run("systemctl start megapage", 150)
    vm.check(ROW, "systemctl start returns: READY=1 came", started.status == 0, started.words + journal("megapage")[-800:], 0)
    state = show("megapage", "ActiveState", "MainPID", "StatusText", "WatchdogUSec", "NRestarts")
    vm.same(ROW, "it is active", state.get("ActiveState"), "active")
    vm.check(ROW, "the journal has its words", "policy" in journal("megapage"), journal("megapage")[-400:], "policy megapage")
    if truth.collapses():
        came = vm.wait_until(lambda: truth.backing(busy.pid).thp >= 4 * vm.MIB, 400 if started.status == 0 else 1)
        vm.check(ROW, "with the unit's capabilities it makes hot memory huge", came, journal("megapage")[-600:],
                 truth.backing(busy.pid).thp)
    busy.intact(ROW, "beside the service")
    reloaded = vm.run("systemctl reload megapage", 60)
    vm.check(ROW, "a reload", reloaded.status == 0, reloaded.words, 0)
    time.sleep(25)
    again = show("megapage", "ActiveState", "MainPID", "NRestarts")
    vm.check(ROW, "the watchdog is fed: no restart within its limit", again.get("MainPID") == state.get("MainPID")
             and again.get("ActiveState") == "active", again, state)
    # A daemon that hangs is noticed.
    pid = int(again.get("MainPID") or 0)
    if pid:
        os.kill(pid, signal.SIGSTOP)
        restarted = vm.wait_until(lambda: show("megapage", "MainPID").get("MainPID") not in ("0", str(pid)), 120, 1)
        vm.check(ROW, "the watchdog restarts one that hangs", restarted, show("megapage", "MainPID", "NRestarts"), f"not {pid}")
        vm.wait_until(lambda: show("megapage", "ActiveState").get("ActiveState") == "active", 60, 1)
    began = time.monotonic()
    stopped = vm.run("systemctl stop megapage", 120)
    vm.check(ROW, "a stop", stopped.status == 0 and time.monotonic() - began < 60, stopped.words, "within 60 s")
    # The watchdog aborted the daemon that hung. A failed state may come from there, and not from
    # the stop.
    vm.check(ROW, "it is down after the stop", show("megapage", "ActiveState").get("ActiveState") in ("inactive", "failed"),
             show("megapage", "ActiveState", "Result"), "inactive")

# Programs under run in services.
row = "run (systemd)"
dynamic = vm.run(["systemd-run", "--quiet", "--unit=dynamic", "-p", "DynamicUser=yes", "-p", "Type=oneshot",
                  "/usr/local/bin/megapage", "run", "--heap", "thp", "--report", "-", "--", "/opt/megapage/holder", "--mib", "16",
                  "--linger", "1500"], 120)
said = journal("dynamic")
vm.check(row, "with DynamicUser: its output and the report are in the journal", dynamic.status == 0 and "ok " in said
         and "memory on huge pages" in said, f"{dynamic.words} {said[-500:]}", "ok, and a report")
server = "import os, socket, time\ns = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n" \
         "s.connect(os.environ['NOTIFY_SOCKET'].replace('@', chr(0), 1)); s.send(b'READY=1'); time.sleep(600)"
for access in ("main", "all"):
    name = f"notifying-{access}"
    done = vm.run(["systemd-run", "--quiet", f"--unit={name}", "-p", "Type=notify", "-p", f"NotifyAccess={access}", "-p",
                   "TimeoutStartSec=40s", "/usr/local/bin/megapage", "run", "--heap", "thp", "--", "python3", "-c", server], 90)
    state = show(name, "ActiveState", "MainPID")
    vm.check(row, f"a program that notifies is ready with NotifyAccess={access}",
             done.status == 0 and state.get("ActiveState") == "active", f"{state} {journal(name)[-300:]}", "active")
    vm.run(f"systemctl kill -s KILL {name}; systemctl reset-failed {name}")
