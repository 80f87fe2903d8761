# program: calloc on recycled dirty memory, four threads (C)
# version: gcc --version
# modes: default preload-thp
cc -O2 -o calloc-zero "$SRC/calloc-zero.c" -pthread
"$RUN" ./calloc-zero
# Returned at once, and never: the two ends of --return-after.
RUN_OPTIONS="--return-after 0s" "$RUN" ./calloc-zero
RUN_OPTIONS="--return-after never" "$RUN" ./calloc-zero
