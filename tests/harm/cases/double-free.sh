# program: a double free, which glibc ends (C)
# version: cc --version
program=$SCRATCH/twice
[ -e "$program" ] || cc -O1 -w -fno-builtin -o "$program" "$SRC/twice.c"
for kind in small large; do
    status=0
    "$RUN" "$program" $kind || status=$?
    echo "$kind: status $status"
done
