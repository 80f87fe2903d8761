# program: USearch, search in a graph index of vectors
# class: vector index
# version: {python} -c 'import usearch; print(usearch.__version__)'
# random: yes
# data: usearch
import numpy
import phases
from usearch.index import Index

index = Index.restore(f"{phases.DATA}/usearch", view=False)
index.expansion_search = 64
queries = numpy.random.default_rng(9).random((8_000, 64), dtype=numpy.float32)
phases.steady()
found = index.search(queries, 10, threads=2)
phases.end(int(found.keys.astype(numpy.int64).sum()))
