"""A file of weights: 48 square layers, or as many as a large one takes."""

import os
import sys

import numpy
from safetensors.numpy import save_file

count = int(os.environ["BENCH_SIZE"]) // (1600 * 1600 * 4) or 48
generator = numpy.random.default_rng(7)
layers = {f"layer{number:02}": generator.standard_normal((1600, 1600), dtype=numpy.float32) / 40 for number in range(count)}
save_file(layers, sys.argv[1])
