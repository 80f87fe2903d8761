"""A graph index of 400,000 vectors."""

import sys

import faiss
import numpy

faiss.omp_set_num_threads(1)
index = faiss.IndexHNSWFlat(64, 12)
index.hnsw.efConstruction = 40
index.add(numpy.random.default_rng(8).random((400_000, 64), dtype=numpy.float32))
faiss.write_index(index, sys.argv[1])
