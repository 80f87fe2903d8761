# program: Polars, join and group by
# class: data frames
# version: {python} -c 'import polars; print(polars.__version__)'
# expect: 30270793632
# large: 5g
import numpy
import polars
import phases

generator = numpy.random.default_rng(2)
rows = phases.SIZE // 160 or 6_000_000
customers = rows // 6
orders = polars.DataFrame({
    "customer": generator.integers(0, customers, rows),
    "product": generator.integers(0, 5_000, rows),
    "amount": generator.integers(1, 1000, rows),
})
people = polars.DataFrame({
    "customer": generator.permutation(customers),
    "region": generator.integers(0, 50, customers),
    "weight": generator.integers(1, 9, customers),
})
phases.steady()
total = 0
for _ in range(1 if phases.SIZE else 2):
    grouped = (
        orders.join(people, on="customer")
        .with_columns((polars.col("amount") * polars.col("weight")).alias("value"))
        .group_by(["region", "product"])
        .agg(polars.col("value").sum().alias("sum"), polars.col("value").max().alias("max"))
    )
    total += int(grouped["sum"].sum()) + int(grouped["max"].sum())
phases.end(total)
