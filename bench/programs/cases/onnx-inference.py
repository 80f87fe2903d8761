# program: ONNX Runtime, a perceptron with an embedding table
# class: machine learning
# version: {python} -c 'import onnxruntime; print(onnxruntime.__version__)'
# random: yes
# data: onnx
import numpy
import onnxruntime
import phases

options = onnxruntime.SessionOptions()
options.intra_op_num_threads = 2
session = onnxruntime.InferenceSession(f"{phases.DATA}/onnx", options, providers=["CPUExecutionProvider"])
generator = numpy.random.default_rng(5)
phases.steady()
total = 0
for _ in range(150):
    words = generator.integers(0, 1_000_000, (4096, 16))
    (scores,) = session.run(None, {"words": words})
    total += int(scores.argmax(axis=1).sum())
phases.end(total)
