# program: fork on a full heap with an empty pool, parent and child writing (SIGBUS in every peer)
# version: uname -r
# modes: default preload-2m
# needs: root pool
cc -O1 -fno-builtin -DWITH_FORK -o fill-fork "$SRC/fill.c" -w
cc -O1 -fno-builtin -o fill "$SRC/fill.c" -w
cc -O1 -o hog "$SRC/hog.c"
mkfifo to from
empty_pool() { # PROGRAM: fills, then the rest of the pool is taken, then it forks
    "$RUN" "$1" 300 fork wait <to >from &
    fill=$!
    exec 3>to 4<from
    for n in 1 2 3 4 5 6 7 8 fork; do
        read -r -t 60 line <&4 && [ "$line" = "at $n" ] || {
            echo "$1: expected 'at $n', got '${line:-nothing}'" >&2
            exit 1
        }
        if [ "$n" = fork ]; then
            ./hog all >hog.txt &
            hog=$!
            for _ in $(seq 100); do [ -s hog.txt ] && break || sleep 0.05; done
        fi
        echo >&3
    done
    wait $fill
    kill $hog
    rm -f hog.txt
    exec 3>&- 4<&-
}
empty_pool ./fill-fork
# The launcher cannot see this one coming.
empty_pool ./fill
