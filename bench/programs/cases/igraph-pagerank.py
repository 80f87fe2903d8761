# program: igraph, ranking and components of a graph
# class: graphs
# version: {python} -c 'import igraph; print(igraph.__version__)'
# random: yes
import igraph
import numpy
import phases

generator = numpy.random.default_rng(3)
vertices, edges = 600_000, 2_500_000
graph = igraph.Graph(n=vertices, edges=generator.integers(0, vertices, (edges, 2)), directed=True)
phases.steady()
ranks = graph.pagerank(damping=0.85)
parts = graph.connected_components("weak")
phases.end(f"{sum(round(rank * 1e12) >> 8 for rank in ranks) >> 12} {len(parts)}")
