"""The container image and the manifests for Kubernetes: the tests that need no cluster."""

import json
import os
import pathlib
import shutil
import sys

import driving
from roots import Failed, Unavailable, call

MANIFESTS = driving.REPOSITORY / "dist/kubernetes"
# The oldest and the newest release of Kubernetes whose schemas are checked.
RELEASES = ("1.30", "1.37")
# The validator contains the schemas: it fetches nothing when it runs.
VALIDATOR = "kubernetes-validate==1.37.0"
MOST_BYTES = 40_000_000
SORT = "seq 400000 | /megapage/bin/megapage run --json --report - -- sort -S 64M -o /dev/null"


def expect(condition, what):
    if not condition:
        raise Failed(what)


def image(bench):
    """Makes the image without a registry and runs it. Checks that its copied files work in a root
    that has none of ours."""
    if os.geteuid() != 0:
        raise Unavailable("buildah runs as root here")
    if not shutil.which("buildah"):
        raise Unavailable("there is no buildah (scripts/install-deps image)")
    call(driving.REPOSITORY / "scripts/image", cwd=driving.REPOSITORY, environment=bench.environment())
    (archive,) = bench.found("*.oci.tar")
    expect(archive.stat().st_size < MOST_BYTES, f"{archive.name} has {archive.stat().st_size} bytes")
    store = bench.scratch / "store"
    buildah = ["buildah", "--root", store, "--runroot", bench.scratch / "runroot", "--storage-driver", "vfs"]
    call(*buildah, "from", "--name", "trial", f"oci-archive:{archive}")
    run = [*buildah, "run", "--isolation", "chroot", "trial", "--", "/usr/bin/megapage"]
    # Only the status counts: buildah once lost the output of a command that ended well.
    call(*run, "daemon", "--check-config")
    call(*run, "pool", "list", "--json")
    root = bench.roots.make("image")
    (root / "megapage").mkdir()
    files = pathlib.Path(call(*buildah, "mount", "trial").strip())
    call("cp", "-r", files / "usr/bin", files / "usr/lib", root / "megapage")
    expect(bench.version() in root.shell("/megapage/bin/megapage --version"), "the image holds another version")
    json.loads(root.shell("/megapage/bin/megapage pool list --json"))
    report = json.loads(root.shell(SORT))
    expect("preload" in report["mechanisms"], f"the copied library was not preloaded: {report['considered']}")


def validator(bench):
    """Returns the command that knows Kubernetes' schemas; installs it below the target directory
    the first time."""
    place = bench.release.parent / "tools/kubernetes-validate"
    program = place / "bin/kubernetes-validate"
    if not program.exists():
        python = shutil.which("python3") or sys.executable
        try:
            call(python, "-m", "venv", place)
            call(place / "bin/python", "-m", "pip", "install", "--quiet", VALIDATOR, seconds=600)
        except Failed as error:
            shutil.rmtree(place, ignore_errors=True)
            raise Unavailable(f"no {VALIDATOR}: {error}") from error
    return program


def kubernetes(bench):
    """Checks that a cluster would take the manifests, and that their containers start megapage with
    options that it knows."""
    if not shutil.which("kubectl"):
        raise Unavailable("there is no kubectl with kustomize")
    program = validator(bench)
    files = sorted((MANIFESTS / "examples").glob("*.yaml"))
    for name in ("base", "pool"):
        files.append(bench.scratch / f"{name}.yaml")
        files[-1].write_text(call("kubectl", "kustomize", MANIFESTS / name))
    for release in RELEASES:
        said = call(program, "--strict", "-k", release, *files)
        expect("daemonset/megapage" in said, f"no daemon among {said}")
    broken = bench.scratch / "broken.yaml"
    broken.write_text((bench.scratch / "base.yaml").read_text().replace("hostPID:", "hostPid:"))
    call(program, "--strict", "-k", RELEASES[-1], broken, status=1)

    megapage = bench.release / "megapage"
    call(megapage, "daemon", "--check-config", "--config", MANIFESTS / "base/daemon.toml")
    words = commands(program, files)
    expect(len(words) >= 5, f"too few containers start megapage: {words}")
    for line in words:
        tried(bench, megapage, line)


def commands(program, files):
    """Returns the words after `megapage` in each container. The YAML parser of the validator reads
    them."""
    script = """
import json, sys, yaml
found = []
def walk(node):
    if isinstance(node, dict):
        if "image" in node:
            words = node.get("command", []) + node.get("args", [])
            if node.get("command", ["megapage"])[0].endswith("megapage"):
                found.append(words[1:] if "command" in node else words)
        for value in node.values():
            walk(value)
    elif isinstance(node, list):
        for value in node:
            walk(value)
for file in sys.argv[1:]:
    for document in yaml.safe_load_all(open(file)):
        walk(document)
print(json.dumps(found))
"""
    return json.loads(call(program.parent / "python", "-c", script, *files))


def tried(bench, megapage, words):
    """Starts megapage as a container does, in a way that changes nothing here."""
    node = bench.scratch / "node"
    (node / "etc/sysctl.d").mkdir(parents=True, exist_ok=True)
    words = [str(node) if word == "/node" else word for word in words]
    if words[0] == "daemon":
        words += ["--check-config"]
    elif words[0] == "run":
        words = ["run", "--dry-run", *words[1:words.index("--")], "--", "true"]
    elif words[:2] == ["pool", "set"]:
        words += ["--dry-run"]
    call(megapage, *words)
    if words[:2] == ["pool", "persist"]:
        kept = pathlib.Path(node / "etc/sysctl.d/60-megapage.conf").read_text()
        expect("vm.nr_hugepages = 512" in kept, f"the pool is not kept: {kept}")
