# program: io_uring: reads into registered buffers of the heap (C)
# version: ls /usr/include/liburing.h
program=$SCRATCH/uring
[ -e "$program" ] || cc -O1 -w -fno-builtin -o "$program" "$SRC/uring.c" -luring
seq 1 100000 >input
status=0
"$RUN" "$program" input 40 || status=$?
echo "status $status"
