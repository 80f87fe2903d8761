# program: inference from mapped weights (NumPy over a safetensors file)
# class: machine learning
# version: {python} -c 'import numpy; print(numpy.__version__)'
# data: weights
# large: 4g
import json
import os
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


def infer(tokens):
    total, state = 0.0, numpy.ones(1600, dtype=numpy.float32)
    for token in range(tokens):
        for layer in layers:
            state = numpy.tanh(layer @ state)
        total += float(numpy.abs(state).sum())
    return total


tokens = 8 if phases.SIZE else 72
(begin, started), (told, tell) = os.pipe(), os.pipe()
if phases.SIZE and os.fork() == 0:
    # A second process reads the same weights at the same time, and holds them until the first ends.
    os.close(started)
    os.read(begin, 1)
    os.write(tell, f"{infer(tokens):.2f}".encode())
    os.read(begin, 1)
    os._exit(0)
phases.steady()
if phases.SIZE:
    os.write(started, b"1")
answer = f"{infer(tokens):.2f}"
phases.end(f"{answer} {os.read(told, 64).decode()}" if phases.SIZE else answer)
if phases.SIZE:
    os.close(started)
    os.wait()
