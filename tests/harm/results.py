"""The matrix program x environment: results/matrix.json, its table in docs/machines.md, and the
known differences."""

import contextlib
import json
import pathlib
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path += [str(HERE.parent), str(HERE.parent / "vm")]
import environments
import matrix

RESULTS = HERE / "results/matrix.json"
EXPECTED = HERE / "expected.txt"
EVERY = [*environments.ENVIRONMENTS, *environments.MACHINES]
BEGIN, END = "<!-- harm:begin -->", "<!-- harm:end -->"


def expected():
    """Returns the known differences: {(program, environment): reason}. A line of the file: PROGRAM
    ENVIRONMENT REASON."""
    known = {}
    for line in EXPECTED.read_text().splitlines():
        if line.strip() and not line.startswith("#"):
            program, environment, reason = line.split(None, 2)
            known[program, environment] = reason
    return known


def section(document):
    """Returns the Markdown between the markers."""
    rows = document["results"]
    columns = [one for one in EVERY if any(row["environment"] == one.name for row in rows)]
    lines = [
        "`ok`: the program behaves as without megapage. `known`: a difference with a reason in `tests/harm/expected.txt`. **no**: any",
        "other difference, listed in `tests/harm/results/matrix.json`. `-`: not run, or the plain program does not run there.",
        "",
        *(f"- `{one.name}`: {one.title}" for one in columns),
        "",
        "| programs | " + " | ".join(one.name for one in columns) + " |",
        "|---|" + "---|" * len(columns),
    ]
    cells = {(row["program"], row["environment"]): row for row in rows}
    # Programs with equal cells share a line.
    alike = {}
    for program in dict.fromkeys(row["program"] for row in rows):
        alike.setdefault(tuple(cell(cells.get((program, one.name))) for one in columns), []).append(program)
    for shown, programs in alike.items():
        lines.append(f"| {', '.join(programs)} | " + " | ".join(shown) + " |")
    differing = [sum(row["outcome"] == "failed" for row in rows if row["environment"] == one.name) for one in columns]
    lines.append("| *programs that differ* | " + " | ".join(map(str, differing)) + " |")
    count = {kind: sum(row["outcome"] == kind for row in rows) for kind in ("passed", "failed", "skipped")}
    made = " and ".join(dict.fromkeys(row["commit"] for row in rows))
    lines += ["", f"Commit {made}: " + ", ".join(f"{number} {kind}" for kind, number in count.items()) + "."]
    return "\n".join(lines)


def cell(row):
    if not row or row["outcome"] == "skipped":
        return "-"
    if row["outcome"] == "failed":
        return "**no**"
    return "known" if row["why"] else "ok"


def kept():
    with contextlib.suppress(OSError):
        return json.loads(RESULTS.read_text())
    return {"schema": "megapage.harm/1", "results": []}


def write(rows):
    """Keeps the results of a run beside those that it left out, and generates the table."""
    commit, new = matrix.commit(), {(row["program"], row["environment"]) for row in rows}
    document = kept()
    document["results"] = [row for row in document["results"] if (row["program"], row["environment"]) not in new]
    document["results"] += [dict(row, commit=commit) for row in rows]
    order = {one.name: at for at, one in enumerate(EVERY)}
    document["results"].sort(key=lambda row: (row["program"], order.get(row["environment"], 99)))
    RESULTS.parent.mkdir(exist_ok=True)
    RESULTS.write_text(matrix.text(document))
    generate()


def generate():
    page = matrix.DOCUMENT.read_text()
    matrix.DOCUMENT.write_text(matrix.replaced(page, section(kept()), BEGIN, END))


def stale(cases):
    """Returns the reason if the table or the list of known differences is out of date; else an
    empty string."""
    names = {case.name for case in cases}
    for program, environment in expected():
        if program not in names or environment not in {one.name for one in EVERY}:
            return f"tests/harm/expected.txt names {program} {environment}, which there is not"
    if not RESULTS.exists():
        return ""
    page = matrix.DOCUMENT.read_text()
    if page != matrix.replaced(page, section(kept()), BEGIN, END):
        return "docs/machines.md is not what tests/harm/results/matrix.json says: run tests/harm/results.py"
    return ""


if __name__ == "__main__":
    generate()
