# program: CPython, parsing JSON
# class: interpreter
# version: {python} --version
# expect: -403092
import json
import phases

records = [
    {"id": n, "name": f"user{n * 7919 % 100003}", "tags": [f"t{n % 13}", f"t{n % 7}"], "score": n * 0.25,
     "place": {"city": f"city{n % 500}", "lat": n % 180 - 90, "lon": n % 360 - 180}}
    for n in range(60_000)
]
text = json.dumps(records)
del records
phases.steady()
total = 0
for _ in range(12):
    parsed = json.loads(text)
    total += sum(record["place"]["lat"] for record in parsed) + len(parsed[-1]["name"])
phases.end(total)
