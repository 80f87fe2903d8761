# program: igraph, ranking and components of a graph
# class: graphs
# version: {python} -c 'import igraph; print(igraph.__version__)'
# random: yes
# large: 3g
import igraph
import numpy
import phases

generator = numpy.random.default_rng(3)
edges = phases.SIZE // 150 or 2_500_000
vertices = edges * 6 // 25
graph = igraph.Graph(n=vertices, edges=generator.integers(0, vertices, (edges, 2)), directed=True)
phases.steady()
ranks = graph.pagerank(damping=0.85)
parts = graph.connected_components("weak")
phases.end(f"{sum(round(rank * 1e12) >> 8 for rank in ranks) >> 12} {len(parts)}")
