# program: fork on a full heap with an empty pool, parent and child writing
# version: uname -r
# modes: default preload-2m
# needs: root pool
cc -O1 -fno-builtin -DWITH_FORK -o fill-fork "$SRC/fill.c" -w
cc -O1 -fno-builtin -o fill "$SRC/fill.c" -w
cc -O1 -o hog "$SRC/hog.c"
mkfifo to from
# 200 MiB, so that the pool holds a second copy until it is emptied.
empty_pool() { # PROGRAM WHEN: the program fills and forks; step WHEN takes the rest of the pool
    "$RUN" "$1" 200 fork wait late <to >from &
    fill=$!
    exec 3>to 4<from
    for n in 1 2 3 4 5 6 7 8 fork forked; do
        read -r -t 600 line <&4 && [ "$line" = "at $n" ] || {
            echo "$1, pool emptied at $2: expected 'at $n', got '${line:-nothing}'" >&2
            exit 1
        }
        if [ "$n" = "$2" ]; then
            ./hog all >hog.txt 3>&- 4<&- &
            hog=$!
            for _ in $(seq 1200); do [ -s hog.txt ] && break || sleep 0.05; done
        fi
        echo >&3
    done
    wait $fill || {
        echo "$1, pool emptied at $2: exit status $?" >&2
        exit 1
    }
    kill $hog
    wait $hog || true
    rm -f hog.txt
    exec 3>&- 4<&-
}
empty_pool ./fill-fork fork
empty_pool ./fill-fork forked
# The launcher cannot foresee this fork: the program looks it up at run time.
empty_pool ./fill fork
empty_pool ./fill forked
