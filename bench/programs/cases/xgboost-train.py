# program: XGBoost, gradient boosting
# class: machine learning
# version: {python} -c 'import xgboost; print(xgboost.__version__)'
import numpy
import phases
import xgboost

generator = numpy.random.default_rng(5)
samples = generator.random((300_000, 30), dtype=numpy.float32)
values = samples[:, 0] * 3 + samples[:, 1] * samples[:, 2] + generator.random(len(samples), dtype=numpy.float32) * 0.1
matrix = xgboost.QuantileDMatrix(samples, values, nthread=1)
settings = {"nthread": 1, "max_depth": 8, "eta": 0.2, "seed": 1, "verbosity": 0}
phases.steady()
model = xgboost.train(settings, matrix, num_boost_round=30)
predicted = model.predict(xgboost.DMatrix(samples, nthread=1))
phases.end(f"{float(predicted.sum(dtype=numpy.float64)):.2f}")
