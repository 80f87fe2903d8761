# program: a preloaded library that takes over open, mmap and madvise, and allocates in them (C)
# version: cc --version
# machine: yes
program=$SCRATCH/use
[ -e "$program" ] || cc -O1 -w -fno-builtin -o "$program" "$SRC/use.c" -pthread
[ -e "$SCRATCH/hook.so" ] || cc -O1 -w -shared -fPIC -o "$SCRATCH/hook.so" "$SRC/hook.c" -ldl
status=0
"$RUN" env LD_PRELOAD="$SCRATCH/hook.so" "$program" || status=$?
echo "status $status"
