# program: a plugin with RTLD_DEEPBIND (C)
# version: cc --version
# machine: yes
[ -e "$SCRATCH/plugin.so" ] || cc -O1 -shared -fPIC -o "$SCRATCH/plugin.so" "$SRC/plugin.c"
[ -e "$SCRATCH/host" ] || cc -O1 -rdynamic -o "$SCRATCH/host" "$SRC/host.c" -ldl
"$RUN" "$SCRATCH/host" "$SCRATCH/plugin.so"
