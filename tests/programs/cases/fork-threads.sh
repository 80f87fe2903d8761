# program: multithreaded program that forks 10,000 times (C++)
# version: g++ --version
# modes: default preload-2m preload-thp
# seconds: 240
c++ -O2 -o fork-threads "$SRC/fork-threads.cc" -pthread
forks=10000
# The default is the claim; the other backings get enough forks to show a lock that is not held over fork.
[ "$MODE" = default ] || forks=2000
"$RUN" ./fork-threads $forks
