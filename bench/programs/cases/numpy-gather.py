# program: NumPy, gather from a big array
# class: arrays
# version: {python} -c 'import numpy; print(numpy.__version__)'
# random: yes
# expect: 3455810256803873
import numpy
import phases

generator = numpy.random.default_rng(1)
values = numpy.arange(64_000_000, dtype=numpy.int64)
where = generator.integers(0, len(values), 12_000_000)
phases.steady()
total = 0
for _ in range(9):
    total += int(values[where].sum())
    where = (where * 5 + 12345) % len(values)
phases.end(total)
