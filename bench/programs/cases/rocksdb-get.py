# program: RocksDB (rocksdict), writes and point look-ups
# class: key-value engine
# version: {python} -c 'import importlib.metadata as m; print(m.version("rocksdict"))'
# expect: 57225480
# large: 3g
import random
import rocksdict
import phases

options = rocksdict.Options(raw_mode=True)
options.create_if_missing(True)
options.set_write_buffer_size(128 << 20)
options.set_compression_type(rocksdict.DBCompressionType.none())
table = rocksdict.BlockBasedOptions()
table.set_block_cache(rocksdict.Cache(phases.SIZE * 9 // 8 or 256 << 20))
options.set_block_based_table_factory(table)
database = rocksdict.Rdict("database", options)
# A large one has values of about 1,000 bytes, all in the cache of blocks.
repeats = 150 if phases.SIZE else 20
count = phases.SIZE // 1_050 or 400_000
for number in range(count):
    database[b"key-%d" % (number * 7919 % count)] = b"%d" % number * repeats
generator = random.Random(4)
wanted = [b"key-%d" % generator.randrange(count) for _ in range(800_000 if phases.SIZE else 250_000)]
if phases.SIZE:
    database.flush()
    for number in range(count):
        database[b"key-%d" % number]
phases.steady()
total = sum(len(database[key]) for _ in range(2) for key in wanted)
phases.end(total)
database.close()
