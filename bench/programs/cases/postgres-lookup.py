# program: PostgreSQL, index look-ups in shared buffers
# class: database
# version: {postgres} --version
# random: yes
# user: postgres
# before: bash -c '$(ls -d /usr/lib/postgresql/*/bin | tail -1)/initdb -D {work}/pg -A trust -U postgres --no-sync'
# server: {postgres} -D {work}/pg -k {work} -c listen_addresses= -c shared_buffers=400MB -c fsync=off -c synchronous_commit=off -c autovacuum=off -c max_wal_size=4GB -c jit=off -c max_parallel_workers_per_gather=0
# stop: INT
# run: {python} {case} {work}
# expect: 286313006
import sys
import phases
import servers

psql = ["psql", "-h", sys.argv[1], "-U", "postgres", "-X", "-q", "-t", "-A", "-v", "ON_ERROR_STOP=1"]
servers.query(psql, "select 1")
servers.query(psql, """create table items (id int primary key, price int, name text) with (fillfactor = 90);
    insert into items select n, n % 1009, repeat('name ' || n, 6) from generate_series(0, 1999999) n;""")
session = servers.Session(psql)
phases.steady()
total = session.ask("""set enable_hashjoin = off; set enable_mergejoin = off;
    select sum(price + length(name)) from generate_series(1, 500000) n
    join items on items.id = (n::bigint * 611953 + 12345) % 2000000;
""")
phases.end(total)
