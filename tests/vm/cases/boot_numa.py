# title: pool persist --boot for each node: the second boot has the pools, or the first one was told that the kernel cannot
# kernels: x86-64 arm64
# memory: 3G
# numa: 2
# seconds: 120
"""Pages for each node on the command line, which the kernel has since Linux 5.16."""

import persisted
import truth
import vmcheck as vm

ROW = "pool persist"

if vm.STAGE == 1:
    done, parameters = persisted.command_line("--boot", "2m=5:10", allowed=(0, 1, 2))
    vm.check(ROW, "a node that is not there is refused, or warned of", done.status == 2 or "node" in done.err + done.out,
             f"{done.status}: {done.words}", "nodes 0 and 1")
    done, parameters = persisted.command_line("--boot", "2m=0:48,1:32", allowed=(0, 1, 2))
    if truth.release() < (5, 16):
        vm.unsupported(ROW, "a kernel that does not know pages for each node is named", "5.1" in done.err + done.out,
                       f"{done.status}: {done.words}", "hugepages=0:48,1:32 since Linux 5.16")
    if done.status != 2:
        vm.reboot(parameters)
else:
    true = [truth.pool(node=node) for node in (0, 1)]
    if truth.release() < (5, 16):
        vm.skip(ROW, f"this kernel boots with {true}")
    else:
        vm.same(ROW, "each node's pool after the boot", true, [48, 32])
