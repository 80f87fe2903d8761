# program: heaptrack, which records malloc
# version: heaptrack --version
program=$SCRATCH/threads
[ -e "$program" ] || cc -O1 -w -fno-builtin -o "$program" "$SRC/threads.c" -pthread
"$RUN" heaptrack -r -o trace "$program" 20 | grep sum
ls trace* | wc -l
