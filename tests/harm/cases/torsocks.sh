# program: torsocks, which takes over calls of the C library
# version: torsocks --version
program=$SCRATCH/use
[ -e "$program" ] || cc -O1 -w -fno-builtin -o "$program" "$SRC/use.c" -pthread
library=$(ls /usr/lib/*-linux-gnu/torsocks/libtorsocks.so)
status=0
"$RUN" env LD_PRELOAD="$library" "$program" || status=$?
echo "status $status"
