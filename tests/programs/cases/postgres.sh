# program: PostgreSQL: initdb, pgbench, crash recovery, balances compared
# version: "$(ls -d /usr/lib/postgresql/*/bin | tail -1)"/postgres --version
# modes: default preload-thp
# seconds: 150
bin=$(ls -d /usr/lib/postgresql/*/bin | tail -1)
as=
if [ "$(id -u)" -eq 0 ]; then
    # The server refuses root.
    chown -R postgres "$WORK"
    as="setpriv --reuid=postgres --regid=postgres --clear-groups"
fi
export PGHOST=$WORK PGUSER=postgres PGDATABASE=postgres LC_ALL=C.UTF-8
# initdb itself, and the postgres processes that it starts.
RUN_OPTIONS=--children $as "$RUN" "$bin/initdb" -D "$WORK/data" -U postgres -A trust --no-sync >initdb.log
start() {
    $as "$RUN" "$bin/postgres" -D "$WORK/data" -k "$WORK" -c listen_addresses= -c shared_buffers=128MB \
        -c max_wal_size=256MB >>postgres.log 2>&1 &
    server=$!
    for _ in $(seq 1800); do
        "$bin/pg_isready" -q && return 0
        kill -0 $server 2>/dev/null || break
        sleep 0.1
    done
    tail -20 postgres.log >&2
    echo "postgres does not answer" >&2
    return 1
}
postmaster() { head -1 "$WORK/data/postmaster.pid"; }
trap '[ ! -e "$WORK/data/postmaster.pid" ] || kill -QUIT "$(postmaster)" 2>/dev/null || true' EXIT

start
"$bin/pgbench" -q -i -s 5 >init.log 2>&1
"$RUN" "$bin/pgbench" -n -c 8 -j 2 -T 5 >bench.log 2>&1
# A new backend process for each transaction: forks of the postmaster.
"$bin/pgbench" -n -c 4 -j 2 -t 50 -C >connect.log 2>&1
"$bin/psql" -qAt -c "SET work_mem = '64MB'" \
    -c "SELECT count(DISTINCT md5(i::text)) FROM generate_series(1, 300000) i" | grep -qx 300000
balanced="SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(tbalance) FROM pgbench_tellers)
    AND (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(delta) FROM pgbench_history)"
[ "$("$bin/psql" -qAt -c "$balanced")" = t ]
rows=$("$bin/psql" -qAt -c "SELECT count(*) FROM pgbench_history")
# A crash: all backends go at once, and the log is replayed.
kill -QUIT "$(postmaster)"
wait $server || true
start
[ "$("$bin/psql" -qAt -c "SELECT count(*) FROM pgbench_history")" = "$rows" ]
[ "$("$bin/psql" -qAt -c "$balanced")" = t ]
kill -INT "$(postmaster)"
wait $server
