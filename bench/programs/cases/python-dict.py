# program: CPython, a dict of strings
# class: interpreter
# version: {python} --version
# random: yes
# expect: 26135151
# large: 4g
# best: mimalloc
# blocks: yes
import random
import phases

count = phases.SIZE // 190 or 2_000_000
words = {f"key-{n}": f"value-{n * 31 % count}" for n in range(count)}
generator = random.Random(5)
wanted = [f"key-{generator.randrange(count)}" for _ in range(3_000_000 if phases.SIZE else 700_000)]
phases.steady()
while True:
    total = 0
    for _ in range(1 if phases.SIZE else 3):
        for key in wanted:
            total += len(words[key])
    if not phases.again():
        break
phases.end(total)
