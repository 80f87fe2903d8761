# title: two NUMA nodes: pools for each, placement of heaps and of promoted memory, memory policy, cpusets, reasons
# kernels: x86-64 arm64
# numa: 2
# memory: 3G
# seconds: 600
"""Claims about nodes, against numa_maps, page frames and the nodes' own counters."""

import json
import pathlib

import truth
import vmcheck as vm

MOMENTS = vm.Moments("/tmp/holder.smaps", 1500)
HOLDER = ["/opt/megapage/holder", "--mib", "24", "--smaps", MOMENTS.path, "--linger", "1500"]


def nodes(name="nr_hugepages"):
    return [truth.pool(node=node, name=name) for node in (0, 1)]


def agrees(what):
    document = vm.megapage("pool list", "pool", "list", "--json").json
    for pool in vm.value(document, "pools", default=[]):
        if pool["page_size"] == "2m":
            vm.same("pool list", f"{what}: total for each node", [node["total"] for node in pool["nodes"]], nodes())
            vm.same("pool list", f"{what}: free for each node", [node["free"] for node in pool["nodes"]],
                    nodes("free_hugepages"))


def fall_backs(what, prefix, wrong, options=("--heap", "2m")):
    """Runs a program whose heap is not available; checks that the reason is not a pool too
    small."""
    MOMENTS.forget()
    report = pathlib.Path("/tmp/report.json")
    report.unlink(missing_ok=True)
    done = vm.run([*prefix, "megapage", "run", *options, "--json", "--report", report, "--", *HOLDER])
    vm.orderly("run --heap 2m", what, done, (0,))
    vm.check("run --heap 2m", f"{what}: the program's output", done.out.startswith("ok "), done.words, "ok")
    try:
        document = json.loads(report.read_text())
    except (OSError, ValueError):
        vm.check("run --heap 2m", f"{what}: a report", False, done.words, "a report")
        return {}
    vm.moment_matches("run --heap 2m", what, document.get("end"), MOMENTS)
    reasons = {reason["reason"] for reason in vm.value(document, "account", "fall_backs", default=[])}
    vm.check("run --heap 2m", f"{what}: the reason is not a short pool", not reasons & wrong, sorted(reasons),
             f"free for each node: {nodes('free_hugepages')}")
    return document


vm.megapage("pool set", "pool", "set", "2m=0:30,1:20")
vm.same("pool set", "pages for each node", nodes(), [30, 20])
agrees("30 and 20")
vm.megapage("pool set", "pool", "set", "--node", "1", "2m=8")
vm.same("pool set", "one node alone", nodes(), [30, 8])
agrees("30 and 8")
vm.megapage("pool set", "pool", "set", "2m=7:4", allowed=(2,))
vm.megapage("pool set", "pool", "set", "--node", "9", "2m=4", allowed=(2,))
vm.same("pool set", "a node that is not there changes nothing", nodes(), [30, 8])

# Only node 0 has pages.
vm.megapage("pool set", "pool", "set", "2m=0:40,1:0")
SHORT = {"pool-short-2m"}
fall_backs("numactl --membind=1, pages on node 0 alone", ["numactl", "--membind=1"], SHORT)
cgroup = pathlib.Path("/sys/fs/cgroup/confined")
cgroup.mkdir(exist_ok=True)
if truth.writable(cgroup / "cpuset.mems", "1"):
    enter = ["sh", "-c", 'echo $$ > /sys/fs/cgroup/confined/cgroup.procs && exec "$@"', "sh"]
    fall_backs("cpuset.mems=1, pages on node 0 alone", enter, SHORT)
    doctor = vm.run([*enter, "megapage", "doctor", "--json"])
    vm.orderly("doctor", "doctor in a cpuset", doctor, (0, 1))
    verdict = next((v for v in vm.value(doctor.json, "verdicts", default=[]) if v["way"] == "mmap(MAP_HUGETLB) of 2m"), {})
    vm.check("doctor", "a refusal by the cpuset is explained", "refused-unexplained" not in json.dumps(doctor.json),
             verdict, "cpuset.mems=1, no page on node 1")
else:
    vm.skip("run --heap 2m", "no cpuset controller")
# On the other node than the program's processors: the pages are there, and the report says where.
MOMENTS.forget()
done = vm.run(["numactl", "--cpunodebind=1", "megapage", "run", "--heap", "2m", "--report", "/tmp/report.txt", "--", *HOLDER])
vm.orderly("run --heap 2m", "run on the other node", done, (0,))
after = MOMENTS.after
if after and after.hugetlb_bytes:
    text = pathlib.Path("/tmp/report.txt").read_text()
    vm.check("run --heap 2m", "pages of a remote node are reported as such", "node" in text, text[:900],
             f"{after.hugetlb_bytes} bytes on node 0, the program on node 1")
vm.megapage("pool set", "pool", "set", "2m=0")
vm.same("pool set", "both emptied", nodes(), [0, 0])

# Promotion: by the majority's node, and where policy says.
for node in (0, 1):
    with vm.Holder("--mib", "48", "--mmap", prefix=("numactl", f"--membind={node}")) as holder:
        before = truth.numa_pages(holder.pid)
        vm.check("run --attach", f"the reading here is sane (node {node})", before.get(node, 0) >= 40 * vm.MIB, before, node)
        if truth.collapses():
            vm.megapage("run --attach", "run", "--attach", holder.pid, "--once", allowed=(0, 1))
            after = truth.numa_pages(holder.pid)
            huge = truth.huge_by_node(holder.pid)
            vm.check("run --attach", f"memory bound to node {node} stays there", after.get(1 - node, 0) <= vm.MIB, after,
                     f"membind={node}")
            vm.check("run --attach", f"its huge pages are of node {node}", huge.get(node, 0) >= 40 * vm.MIB
                     and not huge.get(1 - node), huge, node)
        holder.intact("run --attach", f"on node {node}")
document = vm.megapage("top", "top", "--once", "--no-sample", "--json").json
claimed = {node["node"]: node["free_bytes"] for node in vm.value(document, "machine", "nodes", default=[])}
vm.same("top", "the nodes are those that are there", sorted(claimed), truth.nodes())
for node, free in claimed.items():
    text = pathlib.Path(f"/sys/devices/system/node/node{node}/meminfo").read_text()
    true = int(text.split("MemFree:")[1].split()[0]) * 1024
    vm.same("top", f"free memory of node {node}", free, true, 64 * vm.MIB)
