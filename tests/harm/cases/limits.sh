# program: malloc and mmap up to a size (C)
# version: cc --version
# quick: yes
# machine: yes
program=$SCRATCH/limits
[ -e "$program" ] || cc -O1 -w -fno-builtin -o "$program" "$SRC/limits.c"
"$RUN" "$program" 100
"$RUN" sh -c 'echo hello'
