"""An ONNX model: a table of a million embeddings, summed, and two layers."""

import sys

import numpy
import onnx
from onnx import TensorProto, helper, numpy_helper

generator = numpy.random.default_rng(7)


def weights(name, *shape):
    return numpy_helper.from_array(generator.standard_normal(shape, dtype=numpy.float32) / 8, name)


graph = helper.make_graph(
    [
        helper.make_node("Gather", ["table", "words"], ["rows"]),
        helper.make_node("ReduceSum", ["rows", "axes"], ["sums"], keepdims=0),
        helper.make_node("MatMul", ["sums", "first"], ["hidden"]),
        helper.make_node("Relu", ["hidden"], ["active"]),
        helper.make_node("MatMul", ["active", "second"], ["scores"]),
    ],
    "embedding",
    [helper.make_tensor_value_info("words", TensorProto.INT64, ["batch", 16])],
    [helper.make_tensor_value_info("scores", TensorProto.FLOAT, ["batch", 32])],
    [weights("table", 1_000_000, 64), weights("first", 64, 64), weights("second", 64, 32),
     numpy_helper.from_array(numpy.array([1], dtype=numpy.int64), "axes")],
)
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
onnx.save(model, sys.argv[1])
