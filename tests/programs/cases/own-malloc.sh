# program: program that defines its own malloc (C)
# version: gcc --version
# modes: default outside
cc -O1 -fno-builtin -o own-malloc "$SRC/own-malloc.c" -w
"$RUN" ./own-malloc
