# program: inference from mapped weights (NumPy over a safetensors file)
# class: machine learning
# version: {python} -c 'import numpy; print(numpy.__version__)'
# data: weights
import json
import numpy
import phases

with open(f"{phases.DATA}/weights", "rb") as file:
    length = int.from_bytes(file.read(8), "little")
    header = json.loads(file.read(length))
header.pop("__metadata__", None)
mapped = numpy.memmap(f"{phases.DATA}/weights", dtype=numpy.uint8, mode="r", offset=8 + length)
layers = []
for name in sorted(header):
    begin, end = header[name]["data_offsets"]
    layers.append(mapped[begin:end].view(numpy.float32).reshape(header[name]["shape"]))
phases.steady()
total = 0.0
state = numpy.ones(1600, dtype=numpy.float32)
for token in range(72):
    for layer in layers:
        state = numpy.tanh(layer @ state)
    total += float(numpy.abs(state).sum())
phases.end(f"{total:.2f}")
