# title: the daemon: once, dry run, live; what it says that it made huge against smaps; its ends
# kernels: x86-64 arm64
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
CONFIG, LOG, PASSES = "/tmp/daemon.toml", pathlib.Path("/tmp/daemon.log"), pathlib.Path("/tmp/daemon.json")
LACKING = "no MADV_COLLAPSE before Linux 6.1"


def passes():
    """Returns the documents that the daemon has printed, one for each pass."""
    text, found, at = PASSES.read_text(), [], 0
    while at < len(text):
        try:
            document, at = json.JSONDecoder().raw_decode(text, at)
        except ValueError:  # the last one is being written
            break
        found.append(document)
        while at < len(text) and text[at].isspace():
            at += 1
    return found


def changed(documents, what):
    """Returns the bytes that all passes claim to have promoted, or freed."""
    return sum(done.get(what, 0) for document in documents for done in document.get("done", []))


def huge(*holders):
    return sum(truth.backing(holder.pid).thp for holder in holders)


vm.megapage("daemon --check-config", "daemon", "--check-config")
pathlib.Path(CONFIG).write_text("nonsense = [\n")
vm.megapage("daemon --check-config", "daemon", "--check-config", "--config", CONFIG, allowed=(2,))

with vm.Holder("--mib", "96", "--mmap", "--touch") as hot, vm.Holder("--mib", "32", "--mmap", "--busy") as other:
    before = huge(hot, other)
    vm.megapage("daemon --dry-run", "daemon", "--once", "--dry-run", "--json", allowed=(0, 1))
    vm.same("daemon --dry-run", "nothing becomes huge", huge(hot, other), before)
    once = vm.megapage("daemon --once", "daemon", "--once", "--json", hot.pid, allowed=(0, 1))
    vm.same("daemon --once", "promoted is what became huge", changed([once.json or {}], "promoted_bytes"), huge(hot) - before,
            2 * vm.MIB)
    if not truth.collapses():
        words = once.err + once.out
        vm.unsupported("daemon --once", "the kernel is named as what cannot", "6.1" in words, words[-600:], LACKING)
    hot.intact("daemon --once", "after a pass")

    # Live: it starts, promotes what is hot, answers, and obeys signals.
    before = huge(hot, other)
    LOG.touch()
    PASSES.touch()
    with vm.Child("sh", "-c", f"exec megapage daemon --json > {PASSES} 2> {LOG}") as daemon:
        gone = lambda: daemon.process.poll() is not None
        if truth.collapses():
            # On a busy host an emulated machine takes a second to collapse a region, after which
            # the daemon backs off. Observing costs so much there that passes are a minute apart.
            enough = lambda: huge(hot) >= before + 4 * vm.MIB
            came = vm.wait_until(lambda: enough() or gone(), 400) and enough()
            vm.check(ROW, "hot memory becomes huge", came, LOG.read_text()[-500:], f"{huge(hot)} bytes huge")
        else:
            vm.wait_until(lambda: "6.1" in LOG.read_text() or gone(), 60)
            vm.unsupported(ROW, "it starts, and says once what this kernel cannot",
                           not gone() and LOG.read_text().count("6.1)") <= 2 and "6.1" in LOG.read_text(),
                           f"{daemon.process.poll()} {LOG.read_text()[-600:]}", LACKING)
        vm.check(ROW, "it goes on", not gone(), f"{daemon.process.poll()} {LOG.read_text()[-300:]}", "running")
        for holder in (hot, other):
            holder.intact(ROW, "beside the daemon")
        top = vm.megapage("top", "top", "--once", "--no-sample", "--json", allowed=(0, 1)).json
        vm.check("top", "it sees the daemon", gone() or bool(vm.value(top, "daemon")), vm.value(top, "daemon"), "a daemon runs")
        running = not gone()
        if running:
            daemon.process.send_signal(signal.SIGHUP)
            time.sleep(1)
            vm.check(ROW, "SIGHUP does not end it", not gone(), LOG.read_text()[-300:], "running")
        began = time.monotonic()
        status = daemon.signal(signal.SIGTERM, 40)
        vm.check(ROW, "SIGTERM ends it within 30 s", running and status == 0 and time.monotonic() - began < 30,
                 f"status {status} after {time.monotonic() - began:.0f} s", "0")
    documents = passes()
    if running and not changed(documents, "freed_bytes"):
        vm.same(ROW, "promoted, over all passes, is what became huge", changed(documents, "promoted_bytes"),
                huge(hot, other) - before, 2 * vm.MIB)
    for holder in (hot, other):
        holder.intact(ROW, "after the daemon")
