"""Control group limits, shared by the cases of version 1 and 2: a heap against a hugetlb limit,
which is lowered while it runs."""

import json
import pathlib

import truth
import vmcheck as vm

MOMENTS = vm.Moments("/tmp/holder.smaps", 1500)
HOLDER = ["/opt/megapage/holder", "--mib", "24", "--smaps", MOMENTS.path, "--linger", "1500"]


def inside(*directories):
    """Returns the prefix of a command that is to enter control groups first."""
    script = "".join(f"echo $$ > {directory}/cgroup.procs && " for directory in directories)
    return ("sh", "-c", f'{script}exec "$@"', "sh")


def hugetlb(name, directory, limit_file, reserved_file):
    """Runs a heap under limits on hugetlb pages: on faults, and on reservations."""
    for file, what in ((limit_file, "a hugetlb limit"), (reserved_file, "a limit on reservations")):
        limit = directory / file
        if not limit.exists():
            vm.skip("run --heap 2m", f"{name}: no {file} on this kernel")
            continue
        before = limit.read_text().strip()
        vm.pool_pages(40)
        limit.write_text(str(4 * truth.HUGE))
        MOMENTS.forget()
        report = pathlib.Path("/tmp/report.json")
        report.unlink(missing_ok=True)
        done = vm.run([*inside(directory), "megapage", "run", "--heap", "2m", "--json", "--report", report, "--", *HOLDER])
        vm.orderly("run --heap 2m", f"{name}: run under {what}", done, (0,))
        vm.check("run --heap 2m", f"{name}: the program's output under {what}", done.out.startswith("ok "), done.words, "ok")
        try:
            document = json.loads(report.read_text())
        except (OSError, ValueError):
            document = {}
        after = MOMENTS.after
        vm.moment_matches("run --heap 2m", f"{name}: under {what}", document.get("end"), MOMENTS)
        if after:
            vm.check("run --heap 2m", f"{name}: {what} holds", after.hugetlb_bytes <= 4 * truth.HUGE, after.hugetlb, "4 pages")
        reasons = {reason["reason"] for reason in vm.value(document, "account", "fall_backs", default=[])}
        vm.check("run --heap 2m", f"{name}: {what} is not told as a short pool", "pool-short-2m" not in reasons,
                 sorted(reasons), f"{truth.pool(name='free_hugepages')} of 40 pages free")
        refused = vm.run([*inside(directory), "megapage", "run", "--heap", "2m", "--require", "--", *HOLDER])
        # Before Linux 5.16 no heap of ours moves hugetlb pages at all, and that is the reason.
        words = ("cgroup", "control group", "limit") if truth.release() >= (5, 16) else ("5.16",)
        vm.check("run --require", f"{name}: {what} is the reason that is given", refused.status == 125
                 and any(word in refused.err for word in words), f"{refused.status}: {refused.err}", what)
        listed = vm.run([*inside(directory), "megapage", "pool", "list"])
        vm.orderly("pool list", f"{name}: pool list under {what}", listed, (0,))
        vm.check("pool list", f"{name}: {what} is shown to who is under it", directory.name in listed.out, listed.out[-600:],
                 str(limit))
        doctor = vm.run([*inside(directory), "megapage", "doctor", "--json"])
        vm.orderly("doctor", f"{name}: doctor under {what}", doctor, (0, 1))
        vm.check("doctor", f"{name}: {what} is explained", "refused-unexplained" not in doctor.out, doctor.out[:300], what)
        limit.write_text("max" if before == "max" else "-1")


def lowered(name, directory, limit_file, hugetlb_limit):
    """Lowers limits while a program runs, which goes on and keeps each byte."""
    vm.pool_pages(40)
    with vm.Holder("--mib", "24", "--block", "20000", prefix=(*inside(directory), "megapage", "run", "--heap", "2m", "--")) as one:
        one.intact("run --heap 2m", f"{name}: before")
        truth.writable(directory / hugetlb_limit, 2 * truth.HUGE)
        one.ask("write")
        one.intact("run --heap 2m", f"{name}: with the hugetlb limit lowered")
        one.ask("half")
        one.intact("run --heap 2m", f"{name}: after freeing half of it")
        vm.same("run --heap 2m", f"{name}: it ends well", one.ask("quit").startswith("ok"), True)
        vm.check("run --heap 2m", f"{name}: with its own status", vm.wait_until(lambda: one.process.poll() is not None, 30)
                 and one.process.poll() == 0, one.process.poll(), 0)
    truth.writable(directory / hugetlb_limit, "max")
    truth.writable(directory / hugetlb_limit, "-1")
    memory = directory / limit_file
    if not memory.exists():
        return
    with vm.Holder("--mib", "40", "--mmap", prefix=inside(directory)) as holder:
        # Little more room than the process has: a collapse must fit in, or be reported as failed.
        used = truth.backing(holder.pid).total
        truth.writable(memory, used + (6 << 20))
        if truth.collapses():
            done = vm.megapage("run --attach", "run", "--attach", holder.pid, "--once", "--json", allowed=(0, 1))
            after = vm.quiet(holder.pid)
            vm.same("run --attach", f"{name}: THP in the report under a tight memory limit",
                    vm.value(done.json, "end", "resident", "thp_bytes"), after.thp, 2 * vm.MIB)
        holder.intact("run --attach", f"{name}: under a tight memory limit")
        vm.check("run --attach", f"{name}: the process lives", holder.process.poll() is None, holder.process.poll(), "alive")
    truth.writable(memory, "max")
    truth.writable(memory, "-1")
