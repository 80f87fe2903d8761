"""remap on one file system: shared by the cases of ext4, XFS and btrfs."""

import os
import shutil

import truth
import vmcheck as vm

CODE = 8 << 20


def started(path):
    """Starts bigcode at a path; returns the process and its sum."""
    child = vm.Child(path)
    words = child.line().split()
    return child, words[2] if len(words) == 3 else None


def mapped(pid, path):
    """Returns the bytes of a file that a process has mapped by huge pages."""
    return sum(m["FilePmdMapped"] for m in truth.smaps(pid) if m.name == path)


def judge(directory, name):
    aligned, plain = (f"{directory}/{file}" for file in ("bigcode", "bigcode-plain"))
    shutil.copy("/opt/megapage/bigcode", aligned)
    shutil.copy("/opt/megapage/bigcode-plain", plain)
    os.sync()
    child, right = started(aligned)
    child.end()
    row = "remap check"
    document = vm.megapage(row, "remap", "check", "--json", aligned, plain, allowed=(0, 1)).json
    files = {file["file"]: file for file in vm.value(document, "files", default=[])}
    vm.check(row, f"{name}: an aligned file could be primed", files.get(aligned, {}).get("prime_bytes", 0) >= 6 << 20,
             files.get(aligned), "8 MiB of code, aligned")
    vm.check(row, f"{name}: one that is not could not be", files.get(plain, {}).get("prime_bytes") is not None,
             files.get(plain), "an answer")
    for file in (aligned, plain):
        prime(file, name, right)


def prime(path, name, right):
    """Primes a file, and compares the claim with the mappings of a process started then."""
    row = "remap prime"
    done = vm.megapage(row, "remap", "prime", path, "--json", allowed=(0, 1, 2))
    child, found = started(path)
    # A mapping gets a huge entry when it is touched; the second pass touches each piece again.
    answer = child.ask("again")
    true = mapped(child.pid, path)
    vm.check(row, f"{name}: {os.path.basename(path)} computes the same after priming",
             right == found and answer.endswith(f" {right}"), answer, right)
    child.end()
    if done.status == 0:
        vm.check(row, f"{name}: {os.path.basename(path)} is mapped huge where success is claimed", true >= 4 << 20,
                 done.out[-600:], f"{true} bytes mapped by huge pages")
    else:
        words = done.err + done.out
        causes = ("file system", "file-system", "folio", "no part", "align", "Linux ")
        named = any(cause in words for cause in causes)
        vm.unsupported(row, f"{name}: {os.path.basename(path)}: the refusal names its cause, not an errno alone", named, words,
                       "a cause, and what helps")
