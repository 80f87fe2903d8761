# program: calloc on recycled dirty memory, four threads (C)
# version: gcc --version
# modes: default preload-thp
cc -O2 -o calloc-zero "$SRC/calloc-zero.c" -pthread
"$RUN" ./calloc-zero
# Both ends of --return-after: memory is returned at once, or never.
RUN_OPTIONS="--return-after 0s" "$RUN" ./calloc-zero
RUN_OPTIONS="--return-after never" "$RUN" ./calloc-zero
