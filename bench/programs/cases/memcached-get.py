# program: memcached, get of random keys
# class: database
# version: memcached --version
# random: yes
# user: nobody
# server: memcached -m 1024 -t 2 -p 0 -s {socket}
# run: {python} {case} {socket}
# expect: 2058165106
import random
import sys
import phases
import servers

count, batch = 1_000_000, 500
pipeline = servers.Pipeline(servers.connect(sys.argv[1]))
for first in range(0, count, batch):
    pipeline.send(b"".join(b"set key:%08d 0 0 72\r\n%s\r\n" % (n, b"v%08d" % n * 8) for n in range(first, first + batch)),
                  len(b"STORED\r\n") * batch)
generator = random.Random(3)
requests = [b"".join(b"get key:%08d\r\n" % generator.randrange(count) for _ in range(batch)) for _ in range(1500)]
size = batch * (len(b"VALUE key:00000000 0 72\r\n") + 72 + 2 + len(b"END\r\n"))
pipeline.digest = 0
phases.steady()
for request in requests:
    pipeline.send(request, size)
phases.end(pipeline.digest)
