# program: Redis: 60,000 keys, a save by fork, a reload
# version: redis-server --version
# more: yes
# machine: yes
cli() { redis-cli -s "$WORK/redis.sock" "$@"; }
trap '[ -z "${server:-}" ] || kill -9 $server 2>/dev/null || true' EXIT
"$RUN" redis-server --port 0 --unixsocket "$WORK/redis.sock" --dir "$WORK" --save '' --loglevel warning --logfile log \
    --enable-debug-command yes &
server=$!
for _ in $(seq 300); do [ "$(cli ping 2>/dev/null)" = PONG ] && break || sleep 0.05; done
cli debug populate 60000 key 200
before=$(cli debug digest)
cli debug reload
[ "$(cli debug digest)" = "$before" ] && echo same
cli bgsave
for _ in $(seq 300); do cli info persistence | grep -q rdb_bgsave_in_progress:0 && break || sleep 0.05; done
cli info persistence | grep rdb_last_bgsave_status
cli shutdown nosave || true
status=0
wait $server || status=$?
server=
echo "status $status"
