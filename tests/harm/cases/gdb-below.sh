# program: a program started by gdb, which dies of a signal
# version: gdb --version
program=$SCRATCH/crash
[ -e "$program" ] || cc -g -O0 -w -o "$program" "$SRC/crash.c"
"$RUN" gdb -q -batch -nx -iex 'set debuginfod enabled off' -ex run -ex 'print where' "$program" 2>&1 | grep 'SIGSEGV\|^\$'
