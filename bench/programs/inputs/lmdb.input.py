"""An LMDB file of 2 million keys."""

import sys

import lmdb

environment = lmdb.open(sys.argv[1], subdir=False, map_size=1 << 30, sync=False, lock=False)
with environment.begin(write=True) as transaction:
    for key in sorted(b"key-%d" % number for number in range(2_000_000)):
        transaction.put(key, (b"%d" % (int(key[4:]) * 31 % 977)).ljust(120, b"."), append=True)
environment.close()
