# program: LMDB, point look-ups in a mapped file
# class: key-value engine
# version: {python} -c 'import lmdb; print(lmdb.__version__)'
# random: yes
# data: lmdb
# expect: 79353069
import random
import lmdb
import phases

environment = lmdb.open(f"{phases.DATA}/lmdb", subdir=False, readonly=True, lock=False, readahead=False)
count = 2_000_000
generator = random.Random(4)
wanted = [b"key-%d" % generator.randrange(count) for _ in range(500_000)]
phases.steady()
total = 0
with environment.begin(buffers=True) as transaction:
    for _ in range(3):
        for key in wanted:
            total += transaction.get(key)[0]
    phases.end(total)
