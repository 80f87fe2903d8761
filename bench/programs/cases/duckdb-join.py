# program: DuckDB, join and group by in memory
# class: columnar engine
# version: {python} -c 'import duckdb; print(duckdb.__version__)'
# large: 4g
# loss: DuckDB's allocator leaves the ends of most blocks untouched, 6 % of the memory. `megapage run` fills at most 2.5 % of it. So a quarter stays on base pages, and most of the rest becomes huge only after it was filled.
import duckdb
import phases

rows = phases.SIZE // 55 or 8_000_000
customers = rows // 8

connection = duckdb.connect(config={"threads": 2, "memory_limit": f"{phases.SIZE >> 19}MB" if phases.SIZE else "1GB"})
connection.execute(f"""create table orders as
    select hash(i) % {customers} as customer, hash(i + 7) % 5000 as product, (hash(i + 11) % 1000)::bigint as amount
    from range({rows}) t(i)""")
connection.execute(f"""create table people as
    select i as customer, hash(i) % 50 as region, (hash(i + 3) % 9)::bigint as weight from range({customers}) t(i)""")
phases.steady()
total = 0
for _ in range(1 if phases.SIZE else 4):
    (value,) = connection.execute("""select sum(s) + sum(m) from (
        select region, product, sum(amount * weight) as s, max(amount * weight) as m
        from orders join people using (customer) group by region, product)""").fetchone()
    total += int(value)
phases.end(total)
