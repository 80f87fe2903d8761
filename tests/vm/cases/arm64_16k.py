# title: arm64 with base pages of 16 KiB: every command refuses in one line, the libraries stay out of the way
# kernels: arm64-7.3-16k
# seconds: 600
"""Refusals on a kernel that is not supported: each command says so, and the preloaded libraries are
plain malloc."""

import ctypes
import os
import pathlib
import sys

import truth
import vmcheck as vm

LINE = "this kernel's base pages are 16 KiB; megapage supports base pages of 4 KiB"
LIBRARY = "/opt/megapage/libmegapage.so"
STARTED = pathlib.Path("/root/started")
# Threads and children that check what they hold; and that nothing asked the kernel for huge pages.
WORK = """
import os, random, threading
random.seed(1)
def work():
    held = {}
    for turn in range(150):
        n = random.randrange(50)
        if n in held: assert held[n] == bytes([n]) * len(held[n])
        held[n] = bytes([n]) * random.choice([10, 1000, 20000, 300000, 5000000])
threads = [threading.Thread(target=work) for _ in range(3)]
for t in threads: t.start()
for t in threads: t.join()
for _ in range(5):
    pid = os.fork()
    if pid == 0: work(); os._exit(0)
    assert os.waitpid(pid, 0)[1] == 0
flags = [line.split() for line in open("/proc/self/smaps") if line.startswith(("VmFlags", "Private_Hugetlb"))]
assert not any("hg" in words for words in flags), "advised"
assert all(words[1] == "0" for words in flags if words[0] == "Private_Hugetlb:")
print("right", "libmegapage" in open("/proc/self/maps").read())
"""

vm.same("doctor", "base pages of this kernel", truth.PAGE, 16384)


def preloaded(library, command, **environment):
    return vm.run(command, 300, env=dict(os.environ, LD_PRELOAD=library, **environment))


for heap in ("auto", "2m", "thp"):
    done = preloaded(LIBRARY, [sys.executable, "-c", WORK], MEGAPAGE_HEAP=heap)
    vm.same("libmegapage.so", f"preloaded by hand, heap {heap}", done.out + done.err, "right True\n")
done = preloaded("/opt/megapage/libmegapage_text.so", [sys.executable, "-c", "print('right')"], MEGAPAGE_TEXT="thp")
vm.same("libmegapage_text.so", "preloaded by hand", done.out + done.err, "right\n")
with vm.Child("env", f"LD_PRELOAD={LIBRARY}", "redis-server", "--port", "0", "--unixsocket", "/tmp/r", "--save", "") as server:
    vm.wait_until(lambda: vm.run(["redis-cli", "-s", "/tmp/r", "ping"]).out == "PONG\n", 60)
    answers = vm.run("redis-cli -s /tmp/r set a b; redis-cli -s /tmp/r get a").out
    vm.same("libmegapage.so", "redis", answers, "OK\nb\n")

library = ctypes.CDLL("/opt/megapage/libmegapage_c.so")
library.megapage_message.restype = ctypes.c_char_p
handle = ctypes.c_uint64()
answer = library.megapage_pool_open(b"app", ctypes.c_uint64(2 << 20), ctypes.byref(handle))
words = library.megapage_message().decode()
vm.check("libmegapage_c.so", "an entry point answers -EOPNOTSUPP, and says why",
         answer == -95 and words.startswith("this kernel's base pages are 16 KiB; "), [answer, words], LINE)


def refused(row, status, *arguments):
    done = vm.megapage(row, *arguments, allowed=(status,), seconds=60)
    title = " ".join(map(str, arguments))
    vm.unsupported(row, f"{title}: one line says so, and nothing else", done.out == "" and done.err.count("\n") == 1
                   and done.err.startswith(f"megapage: {LINE}"), done.err + done.out, LINE)


me = os.getpid()
for arguments in ("pool list", "pool set 2m=+1", "pool serve", "pool stock", f"map {me}", "top --once", f"advise {me}",
                  "daemon --once", "daemon", "segments list", "remap check /bin/true", f"doctor --why {me}"):
    words = arguments.split()
    row = "doctor --why" if words[0] == "doctor" else words[0] if words[0] in ("map", "advise", "top", "daemon") \
        else " ".join(words[:2])
    refused(row, 2, *words)
refused("run --heap auto", 125, "run", "--", "touch", STARTED)
refused("run --attach", 125, "run", "--attach", me)
vm.check("run --heap auto", "the program was not started", not STARTED.exists(), STARTED.exists(), False)
vm.check("pool set", "no pool was changed", all((path / "nr_hugepages").read_text() == "0\n"
         for path in truth.HUGEPAGES.iterdir()), "a page", "none")
doctor = vm.megapage("doctor", "doctor", "--json", allowed=(1,)).json
vm.same("doctor", "its one finding", [finding["id"] for finding in vm.value(doctor, "findings", default=[])], ["base-pages-other"])
vm.same("doctor", "its evidence", vm.value(doctor, "findings", 0, "evidence", 0, "value"), "16 KiB")
vm.same("doctor", "no verdict", vm.value(doctor, "verdicts"), [])
vm.megapage("doctor", "--version")
