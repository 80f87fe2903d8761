# program: GCC compiling an allocator and template-heavy C++ (objects compared)
# version: gcc --version
# modes: default preload-thp
# seconds: 240
mimalloc=$REPOSITORY/crates/heap/preload/vendor/mimalloc
compile() { # DIRECTORY [LAUNCHER]
    # The same relative names everywhere, so that the objects can be equal.
    mkdir -p "$1"
    (
        cd "$1"
        ${2:-} gcc -O1 -I"$mimalloc/include" -c -o c.o "$mimalloc/src/static.c"
        ${2:-} g++ -O1 -std=c++17 -c -o cc.o "$SRC/templates.cc"
    )
}
[ -e "$SCRATCH/gcc/cc.o" ] || compile "$SCRATCH/gcc"
# gcc(1) only starts cc1 and as: --children takes them along.
export RUN_OPTIONS=--children
compile under "$RUN"
cmp "$SCRATCH/gcc/c.o" under/c.o
cmp "$SCRATCH/gcc/cc.o" under/cc.o
