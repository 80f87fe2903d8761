# program: mlockall(2) of present and of future memory (C)
# version: cc --version
program=$SCRATCH/lock
[ -e "$program" ] || cc -O1 -w -fno-builtin -o "$program" "$SRC/lock.c" -pthread
for flags in 1 2 3; do
    status=0
    "$RUN" "$program" $flags 6 || status=$?
    echo "flags $flags: status $status"
done
