# program: fork in a signal handler that interrupts malloc or mmap (C)
# version: cc --version
program=$SCRATCH/handler
[ -e "$program" ] || cc -O1 -w -fno-builtin -o "$program" "$SRC/handler.c"
for kind in heap maps; do
    status=0
    "$RUN" "$program" $kind || status=$?
    echo "$kind: status $status"
done
