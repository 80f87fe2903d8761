# title: the daemon: once, dry run, live; what it says that it made huge against smaps; its ends
# quick: 5.10 6.1
# seconds: 700
"""`megapage daemon` beside programs that check themselves."""

import json
import pathlib
import signal
import time

import truth
import vmcheck as vm

ROW = "daemon"
CONFIG = "/tmp/daemon.toml"


def mine(document, pid):
    """What a pass claims to have promoted of a process."""
    total = 0
    for done in vm.value(document, "done", default=[]):
        if vm.value(done, "action", "pid") == pid or vm.value(done, "action", "process", "pid") == pid or f'"pid": {pid}' in json.dumps(done):
            total += done.get("promoted_bytes", 0)
    return total


vm.megapage("daemon --check-config", "daemon", "--check-config")
pathlib.Path(CONFIG).write_text("nonsense = [\n")
vm.megapage("daemon --check-config", "daemon", "--check-config", "--config", CONFIG, allowed=(2,))

with vm.Holder("--mib", "96", "--mmap", "--busy") as busy, vm.Holder("--mib", "32", "--mmap", "--busy") as other:
    before = {holder.pid: truth.backing(holder.pid).thp for holder in (busy, other)}
    dry = vm.megapage("daemon --dry-run", "daemon", "--once", "--dry-run", "--json", allowed=(0, 1))
    after = {holder.pid: truth.backing(holder.pid).thp for holder in (busy, other)}
    vm.same("daemon --dry-run", "nothing becomes huge", after, before)
    once = vm.megapage("daemon --once", "daemon", "--once", "--json", busy.pid, allowed=(0, 1))
    got = truth.backing(busy.pid).thp - before[busy.pid]
    claimed = sum(done.get("promoted_bytes", 0) for done in vm.value(once.json, "done", default=[]))
    vm.same("daemon --once", "promoted is what became huge", claimed, got, 2 * vm.MIB)
    if not truth.collapses():
        words = once.err + once.out
        vm.unsupported("daemon --once", "the kernel is named as what cannot", "6.1" in words, words[-600:], "Linux 6.1")
    busy.intact("daemon --once", "after a pass")

    # Live: it starts, promotes what is hot, answers, and obeys SIGTERM.
    log = open("/tmp/daemon.log", "w")
    with vm.Child("megapage", "daemon", "--json", "megapage-none", "holder", stderr=log) as daemon:
        time.sleep(2)
        if truth.collapses():
            huge = lambda: truth.backing(busy.pid).thp >= 40 * vm.MIB
            came = vm.wait_until(lambda: huge() or daemon.process.poll() is not None, 150) and huge()
            vm.check(ROW, "hot memory becomes huge", came, pathlib.Path("/tmp/daemon.log").read_text()[-500:],
                     f"{truth.backing(busy.pid).thp} bytes huge")
        else:
            words = pathlib.Path("/tmp/daemon.log").read_text
            vm.wait_until(lambda: "6.1" in words() or daemon.process.poll() is not None, 60)
            vm.unsupported(ROW, "it starts, and says once what this kernel cannot",
                           daemon.process.poll() is None and "6.1" in words(), f"{daemon.process.poll()} {words()[-600:]}",
                           "it runs; no MADV_COLLAPSE before Linux 6.1")
        vm.check(ROW, "it goes on", daemon.process.poll() is None, daemon.process.poll(), "running")
        for holder in (busy, other):
            holder.intact(ROW, "beside the daemon")
        top = vm.megapage("top", "top", "--once", "--no-sample", "--json", allowed=(0, 1)).json
        vm.check("top", "it sees the daemon", daemon.process.poll() is not None or bool(vm.value(top, "daemon")),
                 vm.value(top, "daemon"), "a daemon runs")
        running = daemon.process.poll() is None
        daemon.process.send_signal(signal.SIGHUP)
        time.sleep(1)
        vm.check(ROW, "SIGHUP does not end it", not running or daemon.process.poll() is None, daemon.process.poll(), "running")
        began = time.monotonic()
        status = daemon.signal(signal.SIGTERM, 40)
        vm.check(ROW, "SIGTERM ends it within 30 s", running and status == 0 and time.monotonic() - began < 30,
                 f"status {status} after {time.monotonic() - began:.0f} s", "0")
    log.close()
    for holder in (busy, other):
        holder.intact(ROW, "after the daemon")
