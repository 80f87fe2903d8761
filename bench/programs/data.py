"""The input of the programs: made once for each size, by the scripts of inputs/."""

import hashlib
import os
import pathlib
import shutil
import subprocess

INPUTS = pathlib.Path(__file__).resolve().parent / "inputs"


def make(name, directory, python, size=0):
    """Makes `directory`/`name` with inputs/`name`.input.py, unless this very script made it
    already. `size` is that of a large program, else 0.

    Returns the reason if that fails, else None."""
    script = INPUTS / f"{name}.input.py"
    made, stamp = directory / name, directory / f".{name}.digest"
    digest = hashlib.sha256(script.read_bytes()).hexdigest()
    if made.exists() and stamp.exists() and stamp.read_text() == digest:
        return None
    directory.mkdir(parents=True, exist_ok=True)
    new = directory / f"{name}.new"
    if new.is_dir():
        shutil.rmtree(new)
    environment = dict(os.environ, OMP_NUM_THREADS="1", PYTHONHASHSEED="0", BENCH_SIZE=str(size))
    done = subprocess.run([python, script, new], capture_output=True, text=True, env=environment)
    if done.returncode != 0:
        return f"{script.name} failed: {(done.stderr.strip().splitlines() or ['no reason given'])[-1]}"
    if made.is_dir():
        shutil.rmtree(made)
    new.replace(made)
    stamp.write_text(digest)
    return None
