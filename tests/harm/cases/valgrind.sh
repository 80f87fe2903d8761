# program: valgrind, which replaces malloc
# version: valgrind --version
program=$SCRATCH/threads
[ -e "$program" ] || cc -O1 -w -fno-builtin -o "$program" "$SRC/threads.c" -pthread
"$RUN" valgrind -q "$program" 4
