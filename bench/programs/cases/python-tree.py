# program: CPython, a search tree of objects
# class: interpreter
# version: {python} --version
# random: yes
# expect: 122672834158
import random
import phases


class Node:
    __slots__ = ("key", "value", "left", "right")

    def __init__(self, key, value):
        self.key, self.value, self.left, self.right = key, value, None, None


def build(keys, low, high):
    if low >= high:
        return None
    middle = (low + high) // 2
    node = Node(keys[middle], [middle])
    node.left, node.right = build(keys, low, middle), build(keys, middle + 1, high)
    return node


generator = random.Random(3)
keys = sorted(generator.sample(range(1 << 40), 700_000))
root = build(keys, 0, len(keys))
wanted = generator.choices(keys, k=350_000)
phases.steady()
total = 0
for key in wanted:
    node = root
    while node.key != key:
        node = node.left if key < node.key else node.right
    node.value.append(total & 7)
    total += len(node.value) + node.value[0]
phases.end(total)
