"""The initial file system of a machine: busybox, modules, and the guest's side with the cases of
one boot."""

import json
import pathlib
import shutil
import subprocess

import packages

HERE = pathlib.Path(__file__).resolve().parent
# Modules that are loaded, unless a kernel has them built in; then modules that modprobe can load.
NEEDED = ("virtio_pci", "virtio_blk", "ext4")
WANTED = ("xfs", "btrfs", "zram", "loop", "fuse", "overlay", "nbd")


def module_files(kernel, names):
    """Returns (release, the files of modules with all that they need, in the order of loading)."""
    release = next((kernel / "usr/lib/modules").iterdir()).name
    found = []
    for name in names:
        shown = subprocess.run(
            [packages.which("modprobe"), "--show-depends", "-d", kernel, "-S", release, name],
            capture_output=True, text=True, check=False,
        )
        for line in shown.stdout.splitlines():
            word, _, rest = line.partition(" ")
            path = rest.strip().split()[0] if rest.strip() else ""
            if word == "insmod" and path not in found:
                found.append(path)
    return release, found


def archive(kernel, architecture, plan, work):
    """Makes the initial file system; returns its file in the directory `work`."""
    tree = work / "initial"
    for name in ("bin", "vm/cases"):
        (tree / name).mkdir(parents=True)
    shutil.copy(packages.busybox(architecture.debian), tree / "bin/busybox")
    (tree / "bin/busybox").chmod(0o755)
    shutil.copy(HERE / "guest/initial", tree / "init")
    (tree / "init").chmod(0o755)
    for file in (HERE / "guest").iterdir():
        if file.is_file():
            shutil.copy(file, tree / "vm" / file.name)
    for case in plan:
        shutil.copy(case["path"], tree / "vm/cases")
    if any(case["needs"] == "damo" for case in plan):
        shutil.copytree(packages.damo(), tree / "vm/damo")
    guest_plan = [{key: value for key, value in case.items() if key not in ("path", "needs")} for case in plan]
    (tree / "vm/plan.json").write_text(json.dumps(guest_plan))
    release, needed = module_files(kernel, NEEDED + architecture.modules)
    _, wanted = module_files(kernel, WANTED)
    load = []
    for path in dict.fromkeys([*needed, *wanted]):
        inside = pathlib.Path("lib/modules") / pathlib.Path(path).resolve().relative_to(
            (kernel / "usr/lib/modules").resolve()
        )
        target = tree / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        if path.endswith(".xz"):  # busybox loads no packed ones
            target = target.with_suffix("")
            unpacked = subprocess.run([packages.which("xz"), "-dc", path], check=True, capture_output=True)
            target.write_bytes(unpacked.stdout)
        else:
            shutil.copy(path, target)
        if path in needed:
            load.append("/" + str(target.relative_to(tree)))
    if (tree / "lib").exists():
        packages.call("depmod", "-b", tree, release)
    (tree / "vm/load").write_text("\n".join(load))
    made = work / "initial.cpio"
    names = subprocess.run(["find", "."], cwd=tree, check=True, capture_output=True).stdout
    with made.open("wb") as out:
        subprocess.run(["cpio", "-o", "-H", "newc", "--quiet"], cwd=tree, input=names, stdout=out, check=True)
    shutil.rmtree(tree)
    return made
