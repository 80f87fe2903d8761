# program: Python: JSON documents in and out
# version: /usr/bin/python3 --version
# quick: yes
# more: yes
"$RUN" /usr/bin/python3 -c '
import hashlib, json
rows = [{"id": n, "name": "name %d" % n, "tags": ["a", "b", str(n % 97)], "value": n / 7} for n in range(120000)]
text = json.dumps(rows)
again = json.loads(text)
assert again == rows
del rows, text
print(hashlib.sha256(json.dumps(again[::3]).encode()).hexdigest(), len(again))'
