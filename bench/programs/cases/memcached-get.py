# program: memcached, get of random keys
# class: database
# version: memcached --version
# random: yes
# user: nobody
# server: memcached -m 1024 -t 2 -p 0 -s {socket}
# run: {python} {case} {socket}
# expect: 2058165106
# large: 6g
# large-server: memcached -m {mib} -t 2 -p 0 -s {socket}
# best: mimalloc
# blocks: yes
import random
import sys
import phases
import servers

# A large one has values of 288 bytes.
repeats = 32 if phases.SIZE else 8
length = 9 * repeats
count, batch = phases.SIZE // 480 or 1_000_000, 500
count -= count % batch
pipeline = servers.Pipeline(servers.connect(sys.argv[1]))
for first in range(0, count, batch):
    pipeline.send(b"".join(b"set key:%08d 0 0 %d\r\n%s\r\n" % (n, length, b"v%08d" % n * repeats)
                           for n in range(first, first + batch)),
                  len(b"STORED\r\n") * batch)
generator = random.Random(3)
requests = [b"".join(b"get key:%08d\r\n" % generator.randrange(count) for _ in range(batch))
            for _ in range(4500 if phases.SIZE else 1500)]
size = batch * (len(b"VALUE key:00000000 0 %d\r\n" % length) + length + 2 + len(b"END\r\n"))
phases.steady()
while True:
    pipeline.begin()
    for request in requests:
        pipeline.send(request, size)
    if not phases.again():
        break
phases.end(pipeline.digest, pipeline.longest)
