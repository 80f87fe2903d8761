# program: PyPy
# version: pypy3 --version 2>&1 | tail -1
"$RUN" pypy3 -c '
import json
rows = [{"id": n, "name": "name %d" % n} for n in range(150000)]
print(len(json.dumps(json.loads(json.dumps(rows)))), sum(row["id"] for row in rows))'
