# program: hnswlib, search in a graph index of vectors
# class: vector index
# version: {python} -c 'import importlib.metadata as m; print(m.version("hnswlib"))'
# random: yes
# data: hnswlib
import hnswlib
import numpy
import phases

index = hnswlib.Index(space="l2", dim=64)
index.load_index(f"{phases.DATA}/hnswlib")
index.set_num_threads(2)
index.set_ef(64)
queries = numpy.random.default_rng(9).random((14_000, 64), dtype=numpy.float32)
phases.steady()
labels, _ = index.knn_query(queries, k=10)
phases.end(int(labels.astype(numpy.int64).sum()))
