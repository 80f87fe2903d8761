# program: Redis, GET of random keys
# class: database
# version: redis-server --version
# random: yes
# server: redis-server --port 0 --unixsocket {socket} --save "" --appendonly no --dir {work}
# run: {python} {case} {socket}
# expect: 1959411634
# large: 6g
# best: jemalloc
# blocks: yes
import random
import sys
import phases
import servers

# A large one has values of 288 bytes.
repeats = 32 if phases.SIZE else 8
count, batch = phases.SIZE // 410 or 1_000_000, 500
count -= count % batch
pipeline = servers.Pipeline(servers.connect(sys.argv[1]))
for first in range(0, count, batch):
    pipeline.send(b"".join(b"SET key:%08d %s\r\n" % (n, b"v%08d" % n * repeats) for n in range(first, first + batch)),
                  len(b"+OK\r\n") * batch)
generator = random.Random(3)
requests = [b"".join(b"GET key:%08d\r\n" % generator.randrange(count) for _ in range(batch))
            for _ in range(9000 if phases.SIZE else 1500)]
size = batch * (len(b"$%d\r\n" % (9 * repeats)) + 9 * repeats + 2)
phases.steady()
while True:
    pipeline.begin()
    for _ in range(1 if phases.SIZE else 2):
        for request in requests:
            pipeline.send(request, size)
    if not phases.again():
        break
phases.end(pipeline.digest, pipeline.longest)
