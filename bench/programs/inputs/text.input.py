"""40 MB of text: lines of words, common ones often, with numbers between them."""

import random
import sys

generator = random.Random(12)
letters = "etaoinshrdlucmfwypvbgkjqxz"
words = ["".join(generator.choices(letters, range(26, 0, -1), k=generator.randrange(2, 11))) for _ in range(30_000)]
weights = [1 / (rank + 3) for rank in range(len(words))]
size = 0
with open(sys.argv[1], "w") as out:
    while size < 40_000_000:
        drawn = generator.choices(words, weights, k=110_000)
        lines = "".join(
            f"{generator.randrange(1_000_000)} {' '.join(drawn[at:at + 11])}\n" for at in range(0, len(drawn), 11)
        )
        out.write(lines)
        size += len(lines)
