# program: stress-ng: malloc, brk, mmap and mremap, verified
# version: stress-ng --version
"$RUN" stress-ng -q --verify --no-rand-seed --timeout 30 --malloc 2 --malloc-bytes 32M --malloc-ops 20000 \
    --mmap 1 --mmap-bytes 16M --mmap-ops 20 --mremap 1 --mremap-bytes 16M --mremap-ops 20 --brk 1 --brk-ops 20000
