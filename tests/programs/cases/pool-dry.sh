# program: pool that runs dry while the program grows
# version: uname -r
# modes: default preload-2m
# needs: root pool
cc -O1 -fno-builtin -o fill "$SRC/fill.c" -w
cc -O1 -o hog "$SRC/hog.c"
# More than the pool holds.
"$RUN" ./fill 1500
# Another process takes the rest of the pool half-way; afterwards the program goes on.
mkfifo to from
"$RUN" ./fill 400 wait <to >from &
fill=$!
exec 3>to 4<from
step() {
    read -r -t 600 line <&4 && [ "$line" = "at $1" ] || {
        echo "expected 'at $1', got '${line:-nothing}'" >&2
        exit 1
    }
    [ "$1" != 4 ] || {
        ./hog all >hog.txt 3>&- 4<&- &
        hog=$!
        for _ in $(seq 1200); do [ -s hog.txt ] && break || sleep 0.05; done
    }
    echo >&3
}
for n in 1 2 3 4 5 6 7 8; do step $n; done
wait $fill
kill $hog
wait $hog || true
