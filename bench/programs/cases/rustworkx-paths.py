# program: rustworkx, shortest paths in a graph
# class: graphs
# version: {python} -c 'import rustworkx; print(rustworkx.__version__)'
# random: yes
# expect: 468145347
import random
import rustworkx
import phases

generator = random.Random(3)
vertices = 500_000
graph = rustworkx.PyDiGraph()
graph.add_nodes_from(range(vertices))
graph.extend_from_weighted_edge_list(
    [(generator.randrange(vertices), generator.randrange(vertices), float(n % 97 + 1)) for n in range(1_500_000)])
phases.steady()
total = 0
for source in range(2):
    lengths = rustworkx.dijkstra_shortest_path_lengths(graph, source, float)
    total += int(sum(lengths.values()))
phases.end(total)
