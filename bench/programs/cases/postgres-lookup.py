# program: PostgreSQL, index look-ups in shared buffers
# class: database
# version: {postgres} --version
# random: yes
# user: postgres
# before: bash -c '$(ls -d /usr/lib/postgresql/*/bin | tail -1)/initdb -D {work}/pg -A trust -U postgres --no-sync'
# server: {postgres} -D {work}/pg -k {work} -c listen_addresses= -c shared_buffers=400MB -c fsync=off -c synchronous_commit=off -c autovacuum=off -c max_wal_size=4GB -c jit=off -c max_parallel_workers_per_gather=0
# large: 4g
# large-server: {postgres} -D {work}/pg -k {work} -c listen_addresses= -c shared_buffers={mib}MB -c fsync=off -c synchronous_commit=off -c autovacuum=off -c max_wal_size=64GB -c checkpoint_timeout=1h -c jit=off -c max_parallel_workers_per_gather=0
# stop: INT
# large-stop: QUIT
# run: {python} {case} {work}
# expect: 286313006
import sys
import phases
import servers

count = phases.SIZE // 700 or 2_000_000
psql = ["psql", "-h", sys.argv[1], "-U", "postgres", "-X", "-q", "-t", "-A", "-v", "ON_ERROR_STOP=1"]
servers.query(psql, "select 1")
servers.query(psql, """create table items (id int primary key, price int, name text) with (fillfactor = 90);
    insert into items select n, n % 1009, repeat('name ' || n, 6) from generate_series(0, 1999999) n;""" if not phases.SIZE
              # Rows of about 600 bytes fill nine tenths of the buffers, without a log.
              else f"""create unlogged table items (id int primary key, price int, name text) with (fillfactor = 90);
    alter table items alter column name set storage plain;
    insert into items select n, n % 1009, repeat('name ' || n, 42) from generate_series(0, {count - 1}) n;""")
session = servers.Session(psql)
looked_up = 2_000_000 if phases.SIZE else 500_000
phases.steady()
total = session.ask(f"""set enable_hashjoin = off; set enable_mergejoin = off;
    select sum(price + length(name)) from generate_series(1, {looked_up}) n
    join items on items.id = (n::bigint * 611953 + 12345) % {count};
""")
phases.end(total)
