"""5 MB of text, for what compresses slowly."""

import pathlib
import subprocess
import sys

here = pathlib.Path(__file__).resolve().parent
whole = pathlib.Path(sys.argv[1]).with_suffix(".whole")
subprocess.run([sys.executable, here / "text.input.py", whole], check=True)
with open(whole, "rb") as text, open(sys.argv[1], "wb") as out:
    out.write(text.read(5_000_000))
whole.unlink()
