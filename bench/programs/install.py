#!/usr/bin/env python3
"""Installer of everything that the programs of the bench need: Debian packages, a venv, compiled
cases and their input.

    bench/programs/install.py          installs everything; reports Python packages that failed

Python packages at the versions of requirements.txt go into a venv under target/. If they cannot be
installed together, each is installed alone, so that a failure costs only its own program. The
driver compiles cases and makes input when they are first needed.
"""

import functools
import os
import pathlib
import shutil
import subprocess
import sys

import data

HERE = pathlib.Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent
TARGET = pathlib.Path(os.environ.get("CARGO_TARGET_DIR", REPOSITORY / "target")).resolve() / "bench"
VENV, DATA, BUILT = TARGET / "venv", TARGET / "data", TARGET / "built"
# Debian's own interpreter: the one that most users have.
PYTHON = "/usr/bin/python3"
# Compilers by language; {main} is the class of a Java case.
COMPILE = {
    ".c": ["gcc", "-O2", "-I", "{lib}", "-o", "{built}", "{case}", "-lm"],
    ".cc": ["g++", "-O2", "-std=c++17", "-I", "{lib}", "-o", "{built}", "{case}"],
    ".rs": ["rustc", "-O", "--edition", "2021", "-o", "{built}", "{case}"],
    ".go": ["go", "build", "-o", "{built}", "{case}", "{lib}/phases.go"],
    ".java": ["javac", "-d", "{built}", "{case}", "{lib}/Phases.java"],
}


def places(case):
    """Returns the values of the {names} in a header's command lines."""
    built = BUILT / case.path.stem
    main = "".join(word.capitalize() for word in case.path.stem.split("-"))
    return {"python": python(), "case": str(case.path), "built": str(built), "main": main, "lib": str(HERE / "lib"),
            "data": str(data_of(case)), "rustc": rustc(), "postgres": postgres(), "variant": case.variant,
            "mib": str(case.size >> 20)}


def data_of(case):
    """Returns the directory of the case's input, one for each size."""
    return DATA / f"{case.size >> 20}m" if case.size else DATA


def python():
    """Returns the venv's interpreter; Debian's if there is none, for the programs that need no
    package."""
    path = VENV / "bin/python"
    return str(path) if path.exists() else PYTHON


@functools.cache
def rustc():
    """Returns the path of the compiler itself: rustup's front end looks for it in the caller's
    home."""
    try:
        root = subprocess.run(["rustc", "--print", "sysroot"], capture_output=True, text=True).stdout.strip()
    except FileNotFoundError:
        root = ""
    return f"{root}/bin/rustc" if root else "rustc"


def postgres():
    """Returns the path of the postgres server, which Debian keeps out of PATH."""
    return str(max(pathlib.Path("/usr/lib/postgresql").glob("*/bin/postgres"), default="postgres"))


def newest(paths):
    return max((path.stat().st_mtime for path in paths), default=0.0)


def compile_case(case):
    """Compiles the case if it is newer than its program. Returns the reason if that fails, else
    None."""
    command = COMPILE.get(case.path.suffix)
    if command is None:
        return None
    here = places(case)
    stamp = BUILT / f"{case.path.stem}.stamp"
    if stamp.exists() and stamp.stat().st_mtime > newest([case.path, *(HERE / "lib").iterdir()]):
        return None
    BUILT.mkdir(parents=True, exist_ok=True)
    if case.path.suffix == ".go":
        # Go wants the files of a program in one directory.
        sources = BUILT / f"{case.path.stem}.src"
        sources.mkdir(exist_ok=True)
        for path in (case.path, HERE / "lib/phases.go"):
            shutil.copy(path, sources / path.name)
        here["case"], here["lib"] = str(sources / case.path.name), str(sources)
    words = [word.format(**here) for word in command]
    try:
        made = subprocess.run(words, capture_output=True, text=True)
    except FileNotFoundError:
        return f"{words[0]} is not installed"
    if made.returncode != 0:
        return f"does not compile: {made.stderr.strip().splitlines()[-1] if made.stderr.strip() else words[0]}"
    stamp.touch()
    return None


def prepare(case):
    """Makes the case's program and input. Returns the reason if it cannot be run, else None."""
    why = compile_case(case)
    for name in case.data:
        why = why or data.make(name, data_of(case), python(), case.size)
    return why


def main():
    subprocess.run([REPOSITORY / "scripts/install-deps", "bench"], check=True)
    if not (VENV / "bin/python").exists():
        subprocess.run([PYTHON, "-m", "venv", VENV], check=True)
    wanted = [line for line in (HERE / "requirements.txt").read_text().splitlines() if line and not line.startswith("#")]
    pip = [VENV / "bin/python", "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    failed = 0
    if subprocess.run([*pip, *wanted], capture_output=True).returncode != 0:
        for package in wanted:
            tried = subprocess.run([*pip, package], capture_output=True, text=True)
            if tried.returncode != 0:
                failed += 1
                why = (tried.stderr.strip().splitlines() or ["pip failed"])[-1]
                print(f"install: {package} SKIPPED: {why}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
