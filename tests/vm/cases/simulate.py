# title: simulate and bench: the same values twice, and a small bench that checks itself
# kernels: x86-64 arm64
# quick: 6.12
# seconds: 300
"""What asks nothing of the kernel is the same on all of them."""

import hashlib

import vmcheck as vm

arguments = ("simulate", "--workload", "omnetpp", "--policy", "linux,megapage", "--longest", "60", "--json")
first = vm.megapage("simulate", *arguments, seconds=240)
second = vm.megapage("simulate", *arguments, seconds=240)
vm.same("simulate", "the same arguments give the same values", hashlib.sha256(first.out.encode()).hexdigest(),
        hashlib.sha256(second.out.encode()).hexdigest())
vm.check("simulate", "it is a document", bool(first.json), first.out[:200], "JSON")
vm.megapage("simulate", "simulate", "list")
vm.megapage("simulate", "simulate", "--workload", "no-such", allowed=(2,))
