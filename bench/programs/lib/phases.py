"""The bench's protocol (protocol.py): steady(), then end(answer). Without the driver they only
print the answer."""

import os

_OUT, _GO = os.environ.get("BENCH_PHASES"), os.environ.get("BENCH_GO")
DATA = os.environ.get("BENCH_DATA", "")
# The bytes that the program should take in the class large; 0 in the class small.
SIZE = int(os.environ.get("BENCH_SIZE", "0"))


def _send(text):
    if _OUT:
        with open(_OUT, "w") as out:
            out.write(text)
        with open(_GO) as go:
            return go.readline()
    return ""


def steady():
    """Reports that the set-up is done: the measured work follows."""
    _send("phase steady\n")


def again():
    """Returns true if the measured work is to be done once more, with the same answer."""
    return bool(os.environ.get("BENCH_BLOCKS")) and _send("phase block\n") == "go\n"


def end(answer, stall=None):
    """Reports the answer and the end of the measured work, whose memory is still held; also the
    seconds of the longest step, if known."""
    if not _OUT:
        print(answer)
    longest = "" if stall is None else f"stall {stall:.6f}\n"
    _send(f"{longest}answer {answer}\nphase end\n")

