"""Objects of 5,000 functions each, and a list of them. A linker takes about one and a half times their size."""

import concurrent.futures
import os
import pathlib
import subprocess
import sys

FUNCTIONS, TAKEN = 5_000, 6_500_000
CALL = {"aarch64": "bl"}.get(os.uname().machine, "call")
directory = pathlib.Path(sys.argv[1])
directory.mkdir()
count = max(2, int(os.environ["BENCH_SIZE"]) // TAKEN)


def symbol(library, function):
    return f"_ZN7library{library % count}E4name{function % FUNCTIONS}"


def assemble(number):
    lines = []
    for function in range(FUNCTIONS):
        name = symbol(number, function)
        lines.append(f'.section .text.{name},"ax",@progbits\n.globl {name}\n.type {name},@function\n{name}:\n')
        for call in range(1, 5):
            # Each function is reached from the one before it, and from all over the program.
            called = symbol(number * 7 + function + call * 131, function * 31 + call * 977)
            called = symbol(number, function + 1) if call == 1 else called
            lines.append(f"\t{CALL} {called}\n")
        lines.append(f'\tret\n.size {name}, .-{name}\n.section .rodata.str1.1,"aMS",@progbits,1\n')
        lines.append(f'.Ltext{function}: .string "message {function * (number % 50)} of library {number % 200}"\n')
        lines.append(f'.section .data.rel.{function % 64},"aw"\n.quad {name}, .Ltext{function}\n')
    path = directory / f"{number:04}.o"
    subprocess.run(["as", "-o", path, "-"], input="".join(lines).encode(), check=True)
    return path.name


with concurrent.futures.ThreadPoolExecutor(2) as pool:
    names = list(pool.map(assemble, range(count)))
# The directory gets the input's name at the end.
final = directory.with_name(directory.name.removesuffix(".new"))
(directory / "list").write_text("".join(f"{final / name}\n" for name in names))
