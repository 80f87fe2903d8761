"""A graph index of 400,000 vectors; a large one of vectors of 3 KiB, by two threads."""

import os
import sys

import hnswlib
import numpy

size = int(os.environ["BENCH_SIZE"])
count, dimensions = (size // 3_200, 768) if size else (400_000, 64)
index = hnswlib.Index(space="l2", dim=dimensions)
index.init_index(max_elements=count, ef_construction=40, M=12, random_seed=3)
generator = numpy.random.default_rng(8)
for first in range(0, count, 100_000):
    vectors = generator.random((min(100_000, count - first), dimensions), dtype=numpy.float32)
    # One thread: the small graph is to be the same every time.
    index.add_items(vectors, num_threads=2 if size else 1)
index.save_index(sys.argv[1])
