# program: NetworkX, searches in a graph of Python objects
# class: graphs
# version: {python} -c 'import networkx; print(networkx.__version__)'
# random: yes
# expect: 4326820
import random
import networkx
import phases

generator = random.Random(3)
vertices = 200_000
graph = networkx.Graph()
graph.add_nodes_from(range(vertices))
graph.add_edges_from((generator.randrange(vertices), generator.randrange(vertices)) for _ in range(600_000))
phases.steady()
total = 0
for source in range(3):
    total += sum(networkx.single_source_shortest_path_length(graph, source).values())
total += networkx.number_connected_components(graph)
phases.end(total)
