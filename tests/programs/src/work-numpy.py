"""Arrays of every size class, in place and copied, single- and multi-threaded; prints a checksum."""
import concurrent.futures
import hashlib

import numpy as np


def work(seed):
    random = np.random.default_rng(seed)
    digest = hashlib.sha256()
    keep = []
    for power in range(4, 23):
        array = random.integers(0, 1 << 40, size=1 << power, dtype=np.int64)
        digest.update(np.sort(array)[:: max(1, len(array) >> 10)].tobytes())
        digest.update(np.cumsum(array)[-1:].tobytes())
        keep.append(np.concatenate([array, array[::-1]]))
        if len(keep) > 6:
            keep.pop(0)
    assert not np.zeros(1 << 22).any(), "np.zeros is not zero"
    assert not np.zeros(100).any(), "np.zeros is not zero"
    grown = np.arange(1000)
    for _ in range(12):
        grown = np.resize(grown, len(grown) * 2)
    digest.update(grown[::1013].tobytes())
    # Integers: the same result whatever the order of the additions.
    left = random.integers(0, 100, size=(300, 300))
    right = random.integers(0, 100, size=(300, 300))
    digest.update((left @ right).tobytes())
    strings = np.array([f"row {i}" for i in range(20000)], dtype=object)
    digest.update("".join(np.unique(strings)[:100]).encode())
    return digest.hexdigest()[:16]


with concurrent.futures.ThreadPoolExecutor(4) as pool:
    print("numpy:", *pool.map(work, range(1, 7)))
square = np.random.default_rng(7).random((600, 600))
assert np.allclose(square @ np.linalg.inv(square), np.eye(600), atol=1e-6), "inverse"
