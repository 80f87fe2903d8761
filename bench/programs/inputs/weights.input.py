"""A file of weights: 48 square layers."""

import sys

import numpy
from safetensors.numpy import save_file

generator = numpy.random.default_rng(7)
layers = {f"layer{number:02}": generator.standard_normal((1600, 1600), dtype=numpy.float32) / 40 for number in range(48)}
save_file(layers, sys.argv[1])
