# program: programs with functions named as those of the C library (C)
# version: cc --version
for name in open read close syscall madvise fcntl ioctl getpid gettid sysinfo sysconf fstat clock_gettime prctl pthread_create; do
    program=$SCRATCH/own-$name
    [ -e "$program" ] || cc -w -fno-builtin -DNAME=$name -DSTR="\"$name\"" -o "$program" "$SRC/own.c"
    status=0
    "$RUN" "$program" || status=$?
    echo "$name: status $status"
done
