# program: the Boehm collector (C)
# version: ls /usr/include/gc/gc.h
program=$SCRATCH/collected
[ -e "$program" ] || cc -O1 -w -fno-builtin -o "$program" "$SRC/collected.c" -lgc -pthread
"$RUN" "$program"
