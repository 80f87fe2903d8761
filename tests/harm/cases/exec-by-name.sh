# program: exec of musl programs by name, by path, and of a script (C)
# version: musl-gcc -dumpversion
program=$SCRATCH/muslhello
[ -e "$program" ] || musl-gcc -O1 -o "$program" "$SRC/hello.c"
[ -e "$SCRATCH/musl.sh" ] || { printf '#!%s\n' "$program" >"$SCRATCH/musl.sh" && chmod +x "$SCRATCH/musl.sh"; }
cd "$SCRATCH"
export PATH=$SCRATCH:$PATH
for how in muslhello ./muslhello ./musl.sh; do
    status=0
    "$RUN" nice $how || status=$?
    echo "$how: status $status"
done
