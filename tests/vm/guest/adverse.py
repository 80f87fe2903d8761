"""Programs of tests/harm in this machine, plain and under `megapage run`, by the driver of tests/harm."""

import json
import os
import pathlib

import vmcheck as vm

ROW = "run (adverse)"
# Those that the machine's root has, and that an emulated machine runs in a few minutes.
PROGRAMS = ("shell", "pipeline", "sort", "gzip", "perl", "python-json", "python-threads", "sqlite-memory", "redis-memory")


def programs(what, environment="open", names=PROGRAMS, seconds=3000):
    """One comparison for each program; `what` names what is adverse about the machine."""
    rows = pathlib.Path("/tmp/harm-rows")
    only = [word for name in names for word in ("--only", name)]
    variables = dict(os.environ, MEGAPAGE_CACHE="/tmp/cache")
    done = vm.run(["python3", "-B", "/opt/megapage/harm/tests/harm/driver.py", "--megapage", "/opt/megapage/megapage",
                   "--environment", environment, "--rows", str(rows), *only], seconds, env=variables)
    if not rows.exists():
        vm.check(ROW, f"{what}: the driver of tests/harm ends", False, f"status {done.status}: {done.words}", "results")
        return
    for row in json.loads(rows.read_text()):
        if row["outcome"] == "skipped":
            vm.skip(ROW, f"{what}: {row['program']}: {row['why']}")
        else:
            vm.check(ROW, f"{what}: {row['program']} as plain", row["outcome"] == "passed", row["why"], "no difference")
