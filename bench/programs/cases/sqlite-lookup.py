# program: SQLite, point look-ups in a database in memory
# class: database
# version: {python} -c 'import sqlite3; print(sqlite3.sqlite_version)'
# random: yes
# expect: 835769059
# large: 3g
# best: tunable
# blocks: yes
import sqlite3
import phases

# A large one has rows of about 230 bytes.
count, repeats = (phases.SIZE // 310, 5) if phases.SIZE else (1_500_000, 1)
database = sqlite3.connect(":memory:")
database.execute("create table items (id integer primary key, name text, price integer)")
with database:
    database.executemany("insert into items values (?, ?, ?)",
                         ((n, f"item number {n} of the catalogue, as it is printed" * repeats, n % 1009) for n in range(count)))
phases.steady()
while True:
    # The look-ups run inside SQLite: the factor is prime to the number of rows.
    (total,) = database.execute(f"""
    with recursive walk(n) as (select 0 union all select n + 1 from walk where n < {min(count, 5_000_000)})
    select sum(price + length(name)) from walk join items on items.id = walk.n * 611953 % {count}""").fetchone()
    if not phases.again():
        break
phases.end(total)
