# program: 300 threads that allocate (C)
# version: cc --version
# more: yes
# machine: yes
program=$SCRATCH/threads
[ -e "$program" ] || cc -O1 -w -fno-builtin -o "$program" "$SRC/threads.c" -pthread
"$RUN" "$program" 300
