# program: Redis: redis-benchmark, BGSAVE, AOF rewrite, kill -9 and reload, data compared
# version: redis-server --version
# modes: default preload-2m preload-thp outside
# seconds: 120
cli() { redis-cli -s "$WORK/redis.sock" "$@"; }
start() {
    "$RUN" redis-server --port 0 --unixsocket "$WORK/redis.sock" --dir "$WORK" --daemonize no --save '' \
        --enable-debug-command yes --appendfsync everysec --loglevel warning --activedefrag no "$@" >>redis.log 2>&1 &
    server=$!
    for _ in $(seq 1800); do
        [ "$(cli ping 2>/dev/null)" = PONG ] && return 0
        kill -0 $server 2>/dev/null || break
        sleep 0.1
    done
    cat redis.log >&2
    echo "redis-server does not answer" >&2
    return 1
}
until_done() { # FIELD: waits until redis says that the background job has ended, and ended well
    for _ in $(seq 1800); do
        info=$(cli info persistence)
        if ! grep -q "^$1_in_progress:1" <<<"$info" && ! grep -q "^aof_rewrite_scheduled:1" <<<"$info"; then
            grep -q "^$2:ok" <<<"$info"
            return
        fi
        sleep 0.1
    done
    echo "$1 does not end" >&2
    return 1
}
until_written() { # waits until the kernel has all of the log: kill -9 loses what redis still holds
    for _ in $(seq 1800); do
        info=$(cli info persistence | tr -d '\r')
        grep -qx aof_buffer_length:0 <<<"$info" && grep -qx aof_pending_bio_fsync:0 <<<"$info" && return 0
        sleep 0.1
    done
    echo "the log is not written" >&2
    return 1
}
# The driver ends processes that are left running; other servers of this machine are not ours.
trap '[ -z "${server:-}" ] || kill -9 $server 2>/dev/null || true' EXIT

start --appendonly yes
cli debug populate 200000 key 200 >/dev/null
redis-benchmark -s "$WORK/redis.sock" -q -n 50000 -c 20 -d 300 -r 20000 -t set,get,incr,lpush,rpop,sadd,hset,zadd \
    >benchmark.txt
# Snapshots and rewrites fork, while clients keep writing.
redis-benchmark -s "$WORK/redis.sock" -q -n 60000 -c 10 -d 500 -r 20000 -t set,hset >during.txt &
writer=$!
cli bgrewriteaof >/dev/null
until_done aof_rewrite aof_last_bgrewrite_status
cli bgsave >/dev/null
until_done rdb_bgsave rdb_last_bgsave_status
wait $writer
# The append-only file holds everything that was answered.
until_written
before=$(cli debug digest)
size=$(cli dbsize)
kill -9 "$(cli info server | tr -d '\r' | sed -n 's/^process_id://p')"
wait $server || true
start --appendonly yes
[ "$(cli dbsize)" = "$size" ] && [ "$(cli debug digest)" = "$before" ] || {
    echo "data after kill -9 and reload differ: $size keys before, $(cli dbsize) after" >&2
    exit 1
}
# And the same through a snapshot.
cli bgsave >/dev/null
until_done rdb_bgsave rdb_last_bgsave_status
cli shutdown nosave >/dev/null 2>&1 || true
wait $server || true
rm -rf appendonlydir
start --appendonly no
[ "$(cli debug digest)" = "$before" ]
cli shutdown nosave >/dev/null 2>&1 || true
wait $server
server=
