# program: scikit-learn, random forest
# class: machine learning
# version: {python} -c 'import sklearn; print(sklearn.__version__)'
import numpy
import phases
from sklearn.ensemble import RandomForestClassifier

generator = numpy.random.default_rng(5)
samples = generator.random((20_000, 20), dtype=numpy.float32)
labels = ((samples[:, 0] + samples[:, 1] * samples[:, 2]) * 8 + generator.integers(0, 3, len(samples))).astype(int)
forest = RandomForestClassifier(n_estimators=30, n_jobs=2, random_state=1).fit(samples, labels)
asked = generator.random((150_000, 20), dtype=numpy.float32)
phases.steady()
total = 0
for _ in range(2):
    total += int(forest.predict(asked).sum())
phases.end(total)
