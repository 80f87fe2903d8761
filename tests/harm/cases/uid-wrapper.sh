# program: uid_wrapper, which takes over calls of the C library
# version: ls /usr/lib/*-linux-gnu/libuid_wrapper.so
program=$SCRATCH/use
[ -e "$program" ] || cc -O1 -w -fno-builtin -o "$program" "$SRC/use.c" -pthread
library=$(ls /usr/lib/*-linux-gnu/libuid_wrapper.so)
status=0
"$RUN" env LD_PRELOAD="$library" UID_WRAPPER=1 UID_WRAPPER_ROOT=1 "$program" || status=$?
echo "status $status"
"$RUN" env LD_PRELOAD="$library" UID_WRAPPER=1 UID_WRAPPER_ROOT=1 id -u
