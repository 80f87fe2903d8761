"""A graph index of 400,000 vectors."""

import sys

import hnswlib
import numpy

count = 400_000
index = hnswlib.Index(space="l2", dim=64)
index.init_index(max_elements=count, ef_construction=40, M=12, random_seed=3)
vectors = numpy.random.default_rng(8).random((count, 64), dtype=numpy.float32)
# One thread: the graph is to be the same every time.
index.add_items(vectors, num_threads=1)
index.save_index(sys.argv[1])
