# program: hugetlb cgroup limit below what is mapped
# version: uname -r
# modes: default preload-2m
# needs: root pool
cc -O1 -fno-builtin -o fill "$SRC/fill.c" -w
group=
clean_up() {
    # A group is busy until the last process in it has been reaped.
    for _ in $(seq 40); do
        [ -d "$group" ] && ! rmdir "$group" 2>/dev/null || break
        sleep 0.05
    done
    [ -z "${mounted:-}" ] || umount "$mounted" 2>/dev/null || true
}
trap clean_up EXIT
# The limit is on pages that are faulted in. Reservations stay unlimited, as container managers set
# it up.
if grep -qw hugetlb /sys/fs/cgroup/cgroup.controllers 2>/dev/null; then
    echo +hugetlb >/sys/fs/cgroup/cgroup.subtree_control
    group=/sys/fs/cgroup/megapage-test.$$
    mkdir "$group"
    echo $((16 << 20)) >"$group/hugetlb.2MB.max"
elif grep -q '^hugetlb' /proc/cgroups; then
    mounted=$WORK/hugetlb
    mkdir "$mounted"
    mount -t cgroup -o hugetlb none "$mounted"
    group=$mounted/megapage-test.$$
    mkdir "$group"
    echo $((16 << 20)) >"$group/hugetlb.2MB.limit_in_bytes"
else
    echo "the kernel has no hugetlb cgroup controller" >&2
    exit 77
fi
# The launcher starts inside the group, as it would in a container.
GROUP=$group bash -c 'echo $$ >"$GROUP/cgroup.procs" && exec "$@"' - "$RUN" ./fill 200
GROUP=$group bash -c 'echo $$ >"$GROUP/cgroup.procs" && exec "$@"' - "$RUN" ./fill 100 fork
