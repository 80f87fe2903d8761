# program: LightGBM, gradient boosting
# class: machine learning
# version: {python} -c 'import lightgbm; print(lightgbm.__version__)'
# large: 2g
import lightgbm
import numpy
import phases

generator = numpy.random.default_rng(5)
samples = generator.random((phases.SIZE // 300 or 400_000, 30), dtype=numpy.float32)
values = samples[:, 0] * 3 + samples[:, 1] * samples[:, 2] + generator.random(len(samples), dtype=numpy.float32) * 0.1
settings = {"num_threads": 2 if phases.SIZE else 1, "num_leaves": 255, "learning_rate": 0.2, "seed": 1, "verbosity": -1, "deterministic": True,
            "force_row_wise": True}
data = lightgbm.Dataset(samples, values, params=settings).construct()
phases.steady()
model = lightgbm.train(settings, data, num_boost_round=4 if phases.SIZE else 30)
phases.end(f"{float(model.predict(samples[:50_000], num_threads=1).sum()):.3f}")
