"""A graph index of 400,000 vectors; a large one of vectors of 3 KiB, by two threads."""

import os
import sys

import faiss
import numpy

size = int(os.environ["BENCH_SIZE"])
count, dimensions = (size // 3_200, 768) if size else (400_000, 64)
faiss.omp_set_num_threads(2 if size else 1)
index = faiss.IndexHNSWFlat(dimensions, 12)
index.hnsw.efConstruction = 40
generator = numpy.random.default_rng(8)
for first in range(0, count, 100_000):
    index.add(generator.random((min(100_000, count - first), dimensions), dtype=numpy.float32))
faiss.write_index(index, sys.argv[1])
