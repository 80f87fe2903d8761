# program: multithreaded program that forks thousands of times (C++)
# version: g++ --version
# modes: default preload-2m preload-thp
# seconds: 240
c++ -O2 -o fork-threads "$SRC/fork-threads.cc" -pthread
# Enough to show a lock that is not held over fork. More in make soak.
forks=1000
[ -z "${MEGAPAGE_SOAK:-}" ] || forks=10000
# The default is the claim; the other backings get fewer.
[ "$MODE" = default ] || forks=$((forks / 4))
"$RUN" ./fork-threads $forks
