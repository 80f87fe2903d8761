# program: execve from a stack of 16 KiB with 1,000 variables (C)
# version: cc --version
# quick: yes
# machine: yes
program=$SCRATCH/smallstack
[ -e "$program" ] || cc -O1 -w -fno-builtin -o "$program" "$SRC/smallstack.c" -pthread
status=0
"$RUN" "$program" 1000 || status=$?
echo "status $status"
