# program: Apache Arrow C++ (pyarrow), join and group by
# class: columnar engine
# version: {python} -c 'import pyarrow; print(pyarrow.__version__)'
# expect: 7702434470
import numpy
import pyarrow
import phases

pyarrow.set_cpu_count(2)
generator = numpy.random.default_rng(2)
rows, customers = 3_000_000, 500_000
orders = pyarrow.table({
    "customer": generator.integers(0, customers, rows),
    "product": generator.integers(0, 5_000, rows),
    "amount": generator.integers(1, 1000, rows),
})
people = pyarrow.table({"customer": generator.permutation(customers), "weight": generator.integers(1, 9, customers)})
phases.steady()
total = 0
for _ in range(5):
    grouped = orders.join(people, "customer").group_by(["product", "weight"]).aggregate([("amount", "sum"), ("amount", "max")])
    total += sum(grouped["amount_sum"].to_pylist()) + sum(grouped["amount_max"].to_pylist())
phases.end(total)
