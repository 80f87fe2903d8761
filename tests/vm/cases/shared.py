# title: shared memory from outside: attach, advise, daemon and prime against ShmemPmdMapped of each process, and every byte
# seconds: 600
"""Shared memory promoted from outside, and data files primed."""

import os
import pathlib
import tempfile

import truth
import vmcheck as vm

ROW = "run --attach"
SIZE = 16 * vm.MIB
KINDS = ("anonymous", "memfd", "sysv", "/dev/shm/sharers")


class Sharers(vm.Child):
    """Processes that share 16 MiB: the first maps it, the others write to it."""

    def __init__(self, *arguments):
        super().__init__("/opt/megapage/sharers", *arguments)
        words = self.line().split()
        self.address, self.pids = int(words[1], 16), [int(pid) for pid in words[2:]]

    def mapping(self, index):
        found = [m for m in truth.smaps(self.pids[index]) if m.start <= self.address < m.end]
        return found[0] if found else None

    def huge(self, index):
        mapping = self.mapping(index)
        return mapping["ShmemPmdMapped"] if mapping else 0

    def intact(self, row, what):
        answer = self.ask("check")
        return vm.check(row, f"every byte is intact {what}", answer.startswith("ok "), answer or "no answer", "ok")


def attach(sharers, index, *options, allowed=(0, 1)):
    return vm.megapage(ROW, "run", "--attach", sharers.pids[index], "--once", "--json", *options, allowed=allowed)


def deny(value):
    (truth.THP / "shmem_enabled").write_text(value)


vm.still_khugepaged()
if not truth.collapses():
    with Sharers("memfd", 16, 2) as sharers:
        done = attach(sharers, 1, allowed=(2,))
        vm.unsupported(ROW, "shared memory: the kernel is named as what cannot", "6.1" in done.err, done.words,
                       "no MADV_COLLAPSE before Linux 6.1")
        vm.same(ROW, "shared memory: nothing is huge", sharers.huge(1), 0)
        sharers.intact(ROW, "after a refusal")
    raise SystemExit

for kind in KINDS:
    name = os.path.basename(kind)
    with Sharers(kind, 16, 3) as sharers:
        # The first process has touched nothing of the memory.
        done = attach(sharers, 0, "--require", allowed=(0,))
        vm.same(ROW, f"{name}: all of it is huge for who was attached to", sharers.huge(0), SIZE)
        for path in (("shared_memory", "huge_bytes"), ("shared_memory", "resident_bytes"), ("end", "shared", "shmem_pmd_bytes"),
                     ("promotion", "obtained_bytes")):
            vm.same(ROW, f"{name}: {'.'.join(path)}", vm.value(done.json, *path), SIZE)
        sharers.intact(ROW, f"({name})")
        done = attach(sharers, 2)
        vm.same(ROW, f"{name}: for another process too", sharers.huge(2), SIZE)
        sharers.intact(ROW, f"({name}, twice)")

with Sharers("memfd", 16, 2, "misplaced") as sharers:
    done = attach(sharers, 1, "--require", allowed=(125,))
    vm.check(ROW, "misplaced: the reason is given", "beyond a multiple of 2 MiB" in done.err, done.words, "address and offset")
    vm.same(ROW, "misplaced: nothing is huge", sharers.huge(1), 0)
with Sharers("memfd", 16, 2) as sharers:
    former = (truth.THP / "shmem_enabled").read_text().split("[")[1].split("]")[0]
    deny("deny")
    done = attach(sharers, 1, "--require", allowed=(125,))
    deny(former)
    vm.check(ROW, "deny: the setting is named", "'deny'" in done.err, done.words, "shmem_enabled")
with Sharers("memfd", 16, 3, "busy") as sharers:
    attach(sharers, 1)
    sharers.intact(ROW, "while all write")
    vm.check(ROW, "while all write it becomes huge", sharers.huge(1) > 0, sharers.huge(1), "> 0")

row = "daemon"
with Sharers("memfd", 16, 1, "busy") as sharers:
    sharers.intact(row, "before")
    # The daemon accepts no directory that others may write to.
    directory = pathlib.Path(tempfile.mkdtemp(dir="/root"))
    config = directory / "sharers.toml"
    config.write_text(f"policy = 'freebsd'\nlock_file = '{directory}/lock'\nstate_file = ''\n[processes]\n"
                      f"include = ['^no-such-name$']\npids = {sharers.pids}\n[act]\nlatency_guard = '10s'\n"
                      f"[metrics]\nsocket = '{directory}/socket'\n")
    log = directory / "log"
    with vm.Child("megapage", "daemon", "--config", config, stderr=log.open("w")):
        came = vm.wait_until(lambda: sharers.huge(1) == SIZE, 200)
        vm.check(row, "shared memory becomes huge", came, f"{sharers.huge(1)}: {log.read_text()[-500:]}", SIZE)
        sharers.intact(row, "under the daemon")
        what = "for both processes"
        if truth.release() >= (6, 6):
            vm.check(row, what, vm.wait_until(lambda: sharers.huge(0) == SIZE, 200), sharers.huge(0), SIZE)
        else:
            # Base-page mappings of the memory stay until khugepaged, which stands still here, or a
            # request for that process.
            attach(sharers, 0)
            vm.same(row, "for the other process once it is asked for", sharers.huge(0), SIZE)

row = "prime"
path = pathlib.Path("/root/data")
path.write_bytes(bytes(at // 4096 % 251 for at in range(8 * vm.MIB)))
os.sync()
done = vm.megapage(row, "prime", path, "--json", allowed=(0, 1, 2))
if done.status == 0:
    vm.same(row, "all whole blocks are huge", vm.value(done.json, "files", 0, "obtained_bytes"), 8 * vm.MIB)
else:
    words = done.err + done.out
    vm.unsupported(row, "the refusal names its cause", "folio" in words or "file system" in words, words, "large folios")
