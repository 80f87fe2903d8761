# program: static binaries, glibc and musl, and a dynamic musl one (C)
# version: musl-gcc --version
# modes: default outside
cc -O1 -fno-builtin -DWITH_FORK -static -o fill-static "$SRC/fill.c" -w
musl-gcc -O1 -fno-builtin -DWITH_FORK -static -o fill-musl "$SRC/fill.c" -w
"$RUN" ./fill-static 256 fork
"$RUN" ./fill-musl 256 fork
if [ -e /lib/ld-musl-x86_64.so.1 ]; then
    musl-gcc -O1 -fno-builtin -DWITH_FORK -o fill-dynamic "$SRC/fill.c" -w
    "$RUN" ./fill-dynamic 256 fork
fi
