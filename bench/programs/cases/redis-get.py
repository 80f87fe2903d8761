# program: Redis, GET of random keys
# class: database
# version: redis-server --version
# random: yes
# server: redis-server --port 0 --unixsocket {socket} --save "" --appendonly no --dir {work}
# run: {python} {case} {socket}
# expect: 1959411634
import random
import sys
import phases
import servers

count, batch = 1_000_000, 500
pipeline = servers.Pipeline(servers.connect(sys.argv[1]))
for first in range(0, count, batch):
    pipeline.send(b"".join(b"SET key:%08d %s\r\n" % (n, b"v%08d" % n * 8) for n in range(first, first + batch)),
                  len(b"+OK\r\n") * batch)
generator = random.Random(3)
requests = [b"".join(b"GET key:%08d\r\n" % generator.randrange(count) for _ in range(batch)) for _ in range(1500)]
size = batch * (len(b"$72\r\n") + 72 + 2)
pipeline.digest = 0
phases.steady()
for _ in range(2):
    for request in requests:
        pipeline.send(request, size)
phases.end(pipeline.digest)
