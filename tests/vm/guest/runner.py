"""Runner of one boot's cases: in order, each within its time. It reports each as it ends, with the
processes and pools that it left."""

import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

MARK = "@@ "
RECORDS = pathlib.Path("/run/vm-records")
# Kernel messages of a fault in the kernel, or of a program that died of a signal.
BAD = re.compile(
    r"BUG[: ]|Oops|WARNING:|general protection|hung task|blocked for more than|soft lockup|RCU.*stall|rcu.*stall|segfault at"
    r"|trap invalid opcode|killed as a result of limit|Out of memory|MCE: Killing"
)
# Messages that emulated machines are known for; not megapage's faults.
HARMLESS = re.compile(r"WARNING: CPU: .* at arch/x86/(kernel/cpu|events)|unchecked MSR|clocksource|TSC|sgx|spectre", re.I)
# Lines of a case's output that are reported.
TAIL = 40


def report(**record):
    """Writes one record for the host; `patience` is how long the next may take, in seconds."""
    record.setdefault("patience", 240)
    sys.stdout.write(MARK + json.dumps(record) + "\n")
    sys.stdout.flush()


def kernel_log():
    """Returns a descriptor that reads the kernel's messages from now on."""
    log = os.open("/dev/kmsg", os.O_RDONLY | os.O_NONBLOCK)
    os.lseek(log, 0, os.SEEK_END)
    return log


def bad_messages(log):
    """Returns the kernel's bad messages since `log` was opened, 20 at most."""
    found = []
    for _ in range(10_000):
        try:
            line = os.read(log, 8192).decode(errors="replace")
        except BlockingIOError:
            break
        except OSError:  # overrun: the rest comes next
            continue
        text = line.split(";", 1)[-1].split("\n")[0]
        if BAD.search(text) and not HARMLESS.search(text):
            found.append(text)
    return found[:20]


def processes():
    """Returns all processes except the kernel's: {(number, start): name}."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                # A kernel thread has PF_KTHREAD; a zombie is gone but for its number.
                if not int(fields[6]) & 0x200000 and fields[0] not in "ZX":
                    found[(int(entry.name), fields[19])] = (entry / "comm").read_text().strip()
    return found


def pools():
    """Returns the size and the overcommit limit of each pool."""
    found = {}
    for entry in sorted(pathlib.Path("/sys/kernel/mm/hugepages").iterdir()):
        for name in ("nr_hugepages", "nr_overcommit_hugepages"):
            with contextlib.suppress(OSError):
                found[entry / name] = int((entry / name).read_text())
    return found


def run(case, before, pools_before):
    """Runs one case in its own process, which is killed with its session when its time is over."""
    RECORDS.unlink(missing_ok=True)
    RECORDS.touch()
    log = kernel_log()
    report(event="start", case=case["name"], patience=case["seconds"] + 240)
    began = time.monotonic()
    output = open("/run/vm-output", "w+b")
    process = subprocess.Popen(
        [sys.executable, "-B", f"/vm/cases/{case['name']}.py"],
        stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, cwd="/root",
        env=dict(os.environ, PYTHONPATH="/vm", VM_RECORDS=str(RECORDS), VM_STAGE=str(case.get("stage", 1)),
                 VM_KERNEL=case["kernel"], VM_DEVICE=os.ttyname(sys.stdout.fileno())),
    )
    try:
        status = process.wait(timeout=case["seconds"])
    except subprocess.TimeoutExpired:
        status = None
    # Looked at before the kill: the reason of a hang is worth more than its end.
    stuck = stuck_processes(before) if status is None else []
    left = sorted(set(processes()) - set(before) - {(process.pid, None)})
    names = [f"{number}" for number, _ in left]
    shown = [processes().get(key, "") for key in left]
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for number, _ in left:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(number, signal.SIGKILL)
    time.sleep(0.3)
    output.seek(0)
    tail = output.read().decode(errors="replace").splitlines()[-TAIL:]
    pools_after = pools()
    leftover = {str(path): size for path, size in pools_after.items() if size != pools_before.get(path, 0)}
    for path, size in pools_before.items():
        with contextlib.suppress(OSError):
            path.write_text(str(size))
    for line in RECORDS.read_text().splitlines():
        sys.stdout.write(MARK + line + "\n")
    sys.stdout.flush()
    report(
        event="end", case=case["name"], status=status, seconds=round(time.monotonic() - began, 1), tail=tail,
        kernel=bad_messages(log), left=[" ".join(pair) for pair in zip(names, shown)] if status == 0 else [],
        pools=leftover if status == 0 else {}, stuck=stuck,
    )
    os.close(log)


def stuck_processes(before):
    """Returns the processes that hang, and where in the kernel."""
    found = []
    for number, start in sorted(set(processes()) - set(before)):
        words = []
        for name in ("comm", "wchan", "syscall"):
            with contextlib.suppress(OSError):
                words.append(pathlib.Path(f"/proc/{number}/{name}").read_text().strip())
        found.append(f"{number} " + " ".join(words))
    return found[:20]


def main():
    plan = json.loads(pathlib.Path("/vm/plan.json").read_text())
    report(event="up", release=os.uname().release, machine=os.uname().machine)
    for case in plan:
        run(case, processes(), pools())
    report(event="done")


if __name__ == "__main__":
    main()
