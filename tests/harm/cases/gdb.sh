# program: gdb attached to a program, which then goes on
# version: gdb --version
program=$SCRATCH/waits
[ -e "$program" ] || cc -g -O0 -w -o "$program" "$SRC/waits.c"
trap '[ -z "${child:-}" ] || kill -9 $child 2>/dev/null || true' EXIT
mkfifo go
"$RUN" "$program" go pid &
child=$!
for _ in $(seq 400); do [ -s pid ] && break || sleep 0.05; done
gdb -q -batch -nx -iex 'set debuginfod enabled off' -p "$(cat pid)" -ex 'print sum' -ex 'print (int)value(4)' 2>&1 | grep '^\$'
echo >go
status=0
wait $child || status=$?
child=
echo "status $status"
