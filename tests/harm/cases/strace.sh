# program: strace around a program
# version: strace -V
program=$SCRATCH/threads
[ -e "$program" ] || cc -O1 -w -fno-builtin -o "$program" "$SRC/threads.c" -pthread
"$RUN" strace -f -qq -o /dev/null "$program" 20
