# program: DuckDB, join and group by in memory
# class: columnar engine
# version: {python} -c 'import duckdb; print(duckdb.__version__)'
import duckdb
import phases

connection = duckdb.connect(config={"threads": 2, "memory_limit": "1GB"})
connection.execute("""create table orders as
    select hash(i) % 1000000 as customer, hash(i + 7) % 5000 as product, (hash(i + 11) % 1000)::bigint as amount
    from range(8000000) t(i)""")
connection.execute("""create table people as
    select i as customer, hash(i) % 50 as region, (hash(i + 3) % 9)::bigint as weight from range(1000000) t(i)""")
phases.steady()
total = 0
for _ in range(4):
    (value,) = connection.execute("""select sum(s) + sum(m) from (
        select region, product, sum(amount * weight) as s, max(amount * weight) as m
        from orders join people using (customer) group by region, product)""").fetchone()
    total += int(value)
phases.end(total)
