# program: Faiss, search in a graph index of vectors
# class: vector index
# version: {python} -c 'import importlib.metadata as m; print(m.version("faiss-cpu"))'
# random: yes
# data: faiss
# large: 2g
# blocks: yes
import faiss
import numpy
import phases

faiss.omp_set_num_threads(2)
index = faiss.read_index(f"{phases.DATA}/faiss")
index.hnsw.efSearch = 64
queries = numpy.random.default_rng(9).random((8_000 if phases.SIZE else 12_000, index.d), dtype=numpy.float32)
phases.steady()
while True:
    _, labels = index.search(queries, 10)
    if not phases.again():
        break
phases.end(int(labels.sum()))
