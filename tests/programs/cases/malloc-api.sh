# program: malloc(3) and neighbours, every entry point and errno (C)
# version: gcc --version
# modes: default preload-2m preload-thp tunable outside
cc -O1 -fno-builtin -o malloc-api "$SRC/malloc-api.c" -pthread -w
"$RUN" ./malloc-api
