"""The protocol between a program and the driver: the program writes one line of text at each phase,
through the pipe that $BENCH_PHASES names.

    phase setup     its set-up begins (where it does not say so: at its start)
    phase steady    the work that is measured begins
    phase block     that work has been done once, and would be done again (switch.py)
    phase end       that work has ended, and the memory that it holds is still there
    answer TEXT     its answer; the same in every run, whatever the way
    stall SECONDS   the longest that one step of the measured work took, if it knows

After each `phase` line the program reads one line from the pipe that $BENCH_GO names. The driver
takes its measurements before it writes that line: `go`, or `end` if no further block is wanted. The
program stands still meanwhile, and that time does not count. Only a program that finds
$BENCH_BLOCKS asks for blocks.
"""

import re

PHASES = ("setup", "steady", "block", "end")


class ProtocolError(Exception):
    """A line outside the protocol, or at the wrong moment."""


class Parser:
    """The lines of one run, put together from the pieces that a pipe hands out."""

    def __init__(self):
        self.pending = b""
        self.reached = None
        self.answer = self.stall = None

    def feed(self, piece):
        """Returns the messages that `piece` completes, as (kind, text)."""
        self.pending += piece
        if len(self.pending) > 1 << 16:
            raise ProtocolError("64 KiB without an end of line")
        *lines, self.pending = self.pending.split(b"\n")
        return [self.message(line.decode(errors="replace").strip()) for line in lines if line.strip()]

    def message(self, line):
        kind, _, text = line.partition(" ")
        if kind == "phase" and text in PHASES:
            expected = PHASES[PHASES.index(self.reached) + (self.reached != "block"):] if self.reached else PHASES[:2]
            if text not in expected or (text in PHASES[2:] and self.reached not in PHASES[1:3]):
                raise ProtocolError(f"phase {text} after {self.reached or 'the start'}")
            self.reached = text
        elif kind == "answer" and text:
            if self.answer is not None:
                raise ProtocolError(f"a second answer: {text}")
            self.answer = text
        elif kind == "stall" and self.stall is None and re.fullmatch(r"\d+\.\d+", text):
            self.stall = float(text)
        else:
            raise ProtocolError(f"not understood: {line!r}")
        return kind, text

    def check_complete(self):
        """Raises ProtocolError if the program ended without phase end or without an answer."""
        if self.reached != "end":
            raise ProtocolError(f"ended after phase {self.reached}, before phase end")
        if self.answer is None:
            raise ProtocolError("gave no answer")
