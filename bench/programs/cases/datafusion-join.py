# program: DataFusion, join and group by
# class: columnar engine
# version: {python} -c 'import datafusion; print(datafusion.__version__)'
# expect: 18369565209
import datafusion
import numpy
import pyarrow
import phases

generator = numpy.random.default_rng(2)
rows, customers = 4_000_000, 500_000
context = datafusion.SessionContext(datafusion.SessionConfig().with_target_partitions(2))
context.register_record_batches("orders", [pyarrow.table({
    "customer": generator.integers(0, customers, rows),
    "product": generator.integers(0, 5_000, rows),
    "amount": generator.integers(1, 1000, rows),
}).to_batches(max_chunksize=65536)])
context.register_record_batches("people", [pyarrow.table({
    "customer": generator.permutation(customers),
    "weight": generator.integers(1, 9, customers),
}).to_batches(max_chunksize=65536)])
phases.steady()
total = 0
for _ in range(9):
    batches = context.sql("""select sum(s) + sum(m) from (
        select product, weight, sum(amount) as s, max(amount) as m
        from orders join people using (customer) group by product, weight)""").collect()
    total += batches[0].column(0)[0].as_py()
phases.end(total)
