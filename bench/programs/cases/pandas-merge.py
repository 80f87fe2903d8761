# program: pandas, merge and group by
# class: data frames
# version: {python} -c 'import pandas; print(pandas.__version__)'
# expect: 52222160736
import gc
import numpy
import pandas
import phases

generator = numpy.random.default_rng(2)
rows, customers = 2_000_000, 200_000
orders = pandas.DataFrame({
    "customer": generator.integers(0, customers, rows),
    "product": generator.integers(0, 5_000, rows),
    "amount": generator.integers(1, 1000, rows),
})
people = pandas.DataFrame({
    "customer": generator.permutation(customers),
    "region": generator.integers(0, 50, customers),
    "weight": generator.integers(1, 9, customers),
})
phases.steady()
total = 0
for _ in range(9):
    joined = orders.merge(people, on="customer")
    joined["value"] = joined["amount"] * joined["weight"]
    grouped = joined.groupby(["region", "product"])["value"].agg(["sum", "max"])
    total += int(grouped["sum"].sum()) + int(grouped["max"].sum())
    del joined
gc.collect()
phases.end(total)
