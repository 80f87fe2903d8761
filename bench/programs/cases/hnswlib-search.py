# program: hnswlib, search in a graph index of vectors
# class: vector index
# version: {python} -c 'import importlib.metadata as m; print(m.version("hnswlib"))'
# random: yes
# data: hnswlib
# large: 2g
# blocks: yes
import hnswlib
import numpy
import phases

dimensions = 768 if phases.SIZE else 64
index = hnswlib.Index(space="l2", dim=dimensions)
index.load_index(f"{phases.DATA}/hnswlib")
index.set_num_threads(2)
index.set_ef(64)
queries = numpy.random.default_rng(9).random((8_000 if phases.SIZE else 14_000, dimensions), dtype=numpy.float32)
phases.steady()
while True:
    labels, _ = index.knn_query(queries, k=10)
    if not phases.again():
        break
phases.end(int(labels.astype(numpy.int64).sum()))
