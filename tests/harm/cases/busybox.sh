# program: busybox
# version: busybox
"$RUN" busybox sh -c 'seq 1 50000 | sort -rn | sha256sum; exit 2'
