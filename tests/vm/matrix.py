"""The matrix kernel x command of docs/machines.md, from the results of a whole run
(tests/vm/results/matrix.json)."""

import contextlib
import functools
import json
import pathlib
import re
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
RESULTS = HERE / "results/matrix.json"
DOCUMENT = HERE.parent.parent / "docs/machines.md"
BEGIN, END = "<!-- matrix:begin -->", "<!-- matrix:end -->"


def compact(results):
    """Returns the results as they are kept: counts for each case, kernel and command, and every
    wrong claim in words."""
    rows, made_from = [], commit()
    for result in sorted(results, key=lambda result: (result["case"], result["kernel"])):
        commands = {}
        for check in result["checks"]:
            if "harm" in check:  # another table has it (harm)
                continue
            row = commands.setdefault(check["command"], {"right": 0, "wrong": [], "lacking": 0, "skipped": 0})
            if check.get("skipped"):
                row["skipped"] += 1
            elif not check["ok"]:
                row["wrong"].append(check["what"])
            elif check.get("lacking"):
                row["lacking"] += 1
            else:
                row["right"] += 1
        if result["checks"] and not commands:
            continue
        faults = [fault.splitlines()[0] for fault in result["faults"]]
        rows.append({"case": result["case"], "kernel": result["kernel"], "release": result["release"], "commit": made_from,
                     "outcome": result["outcome"], "faults": faults, "commands": commands})
    return text({"schema": "megapage.machines/2", "results": rows})


def kept():
    """Returns the kept results. In schema 1 all of them were of one commit."""
    document = json.loads(RESULTS.read_text())
    for row in document["results"]:
        row.setdefault("commit", document.get("commit", "unknown"))
    return document


def text(document):
    return json.dumps(document, indent=1) + "\n"


@functools.cache
def commit():
    """Returns the commit of the work tree before the first results were written."""
    asked = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=HERE, capture_output=True, text=True, check=False)
    return asked.stdout.strip() or "unknown"


def order(name):
    """Returns the sort key of a series' column: x86-64 before arm64, larger base pages last, then
    by version."""
    number = re.search(r"\d+(\.\d+)+", name)[0]
    return name.startswith("arm64"), name.endswith("k"), [int(part) for part in number.split(".")]


def heading(name, release=None):
    """Returns the heading of a series' column."""
    words = ["arm64"] if name.startswith("arm64") else []
    words.append(f"Linux {(release or name.removeprefix('arm64-')).split('-')[0]}")
    if base_page := re.search(r"-(\d+)k$", name):
        words.append(f"({base_page[1]} KiB pages)")
    return " ".join(words)


def section(document):
    """Returns the Markdown between the markers."""
    kernels = sorted({row["kernel"] for row in document["results"]}, key=order)
    releases = {row["kernel"]: row["release"] for row in document["results"] if row["release"]}
    commands = sorted({command for row in document["results"] for command in row["commands"]})
    lines = [
        "`n`: the number of a command's claims that agree with the kernel's own counts. `n*`: the kernel lacks abilities for some",
        "claims, and the command says so; `n, refused`: for all claims. **wrong**: a claim is false, or the command failed. `-`: not",
        "applicable.",
        "",
        "| command | " + " | ".join(heading(kernel, releases.get(kernel)) for kernel in kernels) + " |",
        "|---|" + "---|" * len(kernels),
    ]
    wrong = []
    for command in commands:
        cells = []
        for kernel in kernels:
            rows = [row["commands"][command] for row in document["results"]
                    if row["kernel"] == kernel and command in row["commands"]]
            right = sum(row["right"] for row in rows)
            lacking = sum(row["lacking"] for row in rows)
            bad = [what for row in rows for what in row["wrong"]]
            wrong += [f"- {heading(kernel)}, `{command}`: {what}" for what in bad]
            if bad:
                cells.append(f"**{len(bad)} wrong** of {right + lacking + len(bad)}")
            elif lacking:
                cells.append(f"{right + lacking}, refused" if not right else f"{right + lacking}*")
            else:
                cells.append(str(right) if right else "-")
        lines.append(f"| {command} | " + " | ".join(cells) + " |")
    faults = [f"- {heading(row['kernel'])}, case {row['case']}: {fault}"
              for row in document["results"] for fault in row["faults"]]
    lines.append("")
    for made_from in dict.fromkeys(row["commit"] for row in document["results"]):
        runs = [row for row in document["results"] if row["commit"] == made_from]
        where = " and ".join(dict.fromkeys("arm64" if row["kernel"].startswith("arm64") else "x86-64" for row in runs))
        counts = [row for run in runs for row in run["commands"].values()]
        bad = sum(len(row["wrong"]) for row in counts)
        total = sum(row["right"] + row["lacking"] for row in counts) + bad
        lines.append(f"Commit {made_from} ({where}): {len(runs)} test runs, {total} claims, {bad} wrong, "
                     f"{sum(len(run['faults']) for run in runs)} other faults.")
    if wrong or faults:
        lines += ["", *dict.fromkeys(wrong), *dict.fromkeys(faults)]
    return "\n".join(lines)


def replaced(former, inside, begin=BEGIN, end=END):
    """Returns a document with the text between the markers replaced."""
    head, _, rest = former.partition(begin)
    _, _, tail = rest.partition(end)
    return f"{head}{begin}\n\n{inside}\n\n{end}{tail}"


def write(results):
    """Keeps the results of a run beside those of cases that it left out, and generates the section
    from them."""
    RESULTS.parent.mkdir(exist_ok=True)
    document = json.loads(compact(results))
    ran = {(row["case"], row["kernel"]) for row in document["results"]}
    cases = {path.stem for path in (HERE / "cases").glob("*.py")}
    with contextlib.suppress(OSError):
        document["results"] += [row for row in kept()["results"] if row["case"] in cases and (row["case"], row["kernel"]) not in ran]
    document["results"].sort(key=lambda row: (order(row["kernel"]), row["case"]))
    RESULTS.write_text(text(document))
    DOCUMENT.write_text(replaced(DOCUMENT.read_text(), section(document)))


def stale():
    """Returns the reason if docs/machines.md differs from the kept results; else an empty
    string."""
    if not RESULTS.exists():
        return f"{RESULTS} is missing: tests/vm/driver.py --matrix writes it"
    written = DOCUMENT.read_text()
    if written != replaced(written, section(kept())):
        return "the matrix is not what tests/vm/results/matrix.json says: run tests/vm/matrix.py"
    return ""


if __name__ == "__main__":
    DOCUMENT.write_text(replaced(DOCUMENT.read_text(), section(kept())))
    sys.exit(0)
