# program: a program that confines itself by a seccomp filter (C)
# version: cc --version
# machine: yes
program=$SCRATCH/filter
[ -e "$program" ] || cc -O1 -w -fno-builtin -o "$program" "$SRC/filter.c"
for mode in kill refuse strict; do
    status=0
    "$RUN" "$program" $mode 60 60 || status=$?
    echo "$mode: status $status"
done
