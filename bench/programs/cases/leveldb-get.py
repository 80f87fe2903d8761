# program: LevelDB (plyvel), writes and point look-ups
# class: key-value engine
# version: {python} -c 'import plyvel; print(plyvel.__version__)'
# expect: 57225480
import random
import plyvel
import phases

database = plyvel.DB("database", create_if_missing=True, write_buffer_size=64 << 20, lru_cache_size=256 << 20,
                     compression=None, block_size=4096)
count = 400_000
with database.write_batch() as batch:
    for number in range(count):
        batch.put(b"key-%d" % (number * 7919 % count), b"%d" % number * 20)
generator = random.Random(4)
wanted = [b"key-%d" % generator.randrange(count) for _ in range(250_000)]
phases.steady()
total = sum(len(database.get(key)) for _ in range(2) for key in wanted)
phases.end(total)
database.close()
