"""A graph index of 400,000 vectors."""

import sys

import numpy
from usearch.index import Index

count = 400_000
index = Index(ndim=64, metric="l2sq", dtype="f32", connectivity=12, expansion_add=40)
index.add(numpy.arange(count), numpy.random.default_rng(8).random((count, 64), dtype=numpy.float32), threads=1)
index.save(sys.argv[1])
