# program: mallinfo2, malloc_info, malloc_usable_size (C)
# version: cc --version
# machine: yes
program=$SCRATCH/statistics
[ -e "$program" ] || cc -O1 -w -fno-builtin -o "$program" "$SRC/statistics.c"
"$RUN" "$program"
