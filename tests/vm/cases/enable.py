# title: enable and disable: Debian's redis-server and a unit of Type=notify become ready, restart and stop under systemd
# init: systemd
# seconds: 900
"""Units that `megapage enable` writes, under a real systemd: readiness, main process, confinement,
and the way back."""

import pathlib
import shutil
import time

import truth
import vmcheck as vm

ROW = "enable (systemd)"
UNITS = pathlib.Path("/etc/systemd/system")


def show(unit, *names):
    text = vm.run(["systemctl", "show", unit, *(f"--property={name}" for name in names)]).out
    return dict(line.partition("=")[::2] for line in text.splitlines())


def journal(unit):
    return vm.run(["journalctl", "--no-pager", "-o", "cat", "-u", unit]).out[-600:]


def files():
    return {path: path.read_bytes() for path in UNITS.rglob("*") if path.is_file()} | {
        path: b"" for path in UNITS.rglob("*") if path.is_dir()
    }


def megapage(*arguments):
    """Runs the installed command, since the drop-in names the command and its libraries."""
    done = vm.run(["/usr/local/bin/megapage", *arguments], 120)
    vm.orderly(ROW, f"megapage {' '.join(arguments)}", done, (0,))
    return done


def maps(pid):
    return pathlib.Path(f"/proc/{pid}/maps").read_text() if pid not in (None, "", "0") else ""


def command_of(pid):
    try:
        return pathlib.Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return ""


bin_ = pathlib.Path("/usr/local/bin/megapage")
shutil.copy("/opt/megapage/megapage", bin_)
libraries = pathlib.Path("/usr/local/lib/megapage")
libraries.mkdir(parents=True, exist_ok=True)
for name in ("libmegapage.so", "libmegapage_text.so"):
    shutil.copy(f"/opt/megapage/{name}", libraries / name)

# A program that says when it is ready, in the kinds of units that confine it most.
server = pathlib.Path("/usr/local/bin/notifying")
server.write_text(
    "#!/usr/bin/python3\n"
    "import os, socket, time\n"
    "data = [str(number) for number in range(400000)]\n"
    "s = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
    "s.connect(os.environ['NOTIFY_SOCKET'].replace('@', chr(0), 1)); s.send(b'READY=1')\n"
    "print('ready', 'LD_PRELOAD' in os.environ, flush=True)\n"
    "time.sleep(600)\n"
)
server.chmod(0o755)
CONFINED = {
    "plain": "",
    "dynamic": "DynamicUser=yes\nProtectSystem=strict\nProtectHome=yes\nPrivateTmp=yes\n",
    "filtered": "MemoryDenyWriteExecute=yes\nSystemCallFilter=@system-service\nSystemCallFilter=~ @privileged @resources\n",
    "noexec": "NoExecPaths=/\nExecPaths=/usr/bin /usr/lib /lib /lib64 /usr/local/bin/notifying\n",
}
for name, lines in CONFINED.items():
    (UNITS / f"notify-{name}.service").write_text(
        f"[Service]\nType=notify\nTimeoutStartSec=120\nExecStart=/usr/local/bin/notifying\n{lines}"
    )
(UNITS / "forks.service").write_text(
    "[Service]\nType=forking\nPIDFile=/run/forks.pid\n"
    "ExecStart=/bin/sh -c 'sleep 600 & echo $$! > /run/forks.pid'\n"
)
vm.run("systemctl unmask redis-server; mkdir -p /var/lib/redis /var/log/redis; chown redis: /var/lib/redis /var/log/redis")
vm.run("systemctl daemon-reload")
before = files()


def started(unit, how):
    done = vm.run(["systemctl", how, unit], 200)
    state = show(unit, "ActiveState", "MainPID", "Result")
    vm.check(ROW, f"{unit}: systemctl {how}: it becomes ready", done.status == 0 and state.get("ActiveState") == "active",
             f"{state} {done.words} {journal(unit)}", "active")
    return state.get("MainPID")


for unit, name in [*((f"notify-{name}", "notifying") for name in CONFINED), ("redis-server", "redis-server")]:
    first = started(unit, "start")
    vm.check(ROW, f"{unit}: before, without the library", "libmegapage" not in maps(first), maps(first)[:200], "none")
    done = megapage("enable", unit, "--now")
    vm.check(ROW, f"{unit}: enable --now", done.status == 0 and f"{unit}.service.d/50-megapage.conf" in done.out, done.words, 0)
    state = show(unit, "ActiveState", "MainPID", "NRestarts", "NeedDaemonReload")
    pid = state.get("MainPID")
    vm.check(ROW, f"{unit}: it is ready again, another process, not restarted by failure",
             state.get("ActiveState") == "active" and pid not in ("0", first) and state.get("NRestarts") == "0"
             and state.get("NeedDaemonReload") == "no", f"{state} {journal(unit)}", "active")
    vm.same(ROW, f"{unit}: the main process is the program", command_of(pid), name)
    vm.check(ROW, f"{unit}: the library is in it", "libmegapage.so" in maps(pid), f"{maps(pid)[:300]} {journal(unit)}", "libmegapage.so")
    if unit == "redis-server":
        pong = vm.run("redis-cli ping")
        vm.check(ROW, "redis-server answers", pong.out.strip() == "PONG", pong.words, "PONG")
        filled = vm.run("redis-cli eval \"for i=1,300000 do redis.call('set','k'..i,string.rep('x',300)) end\" 0", 120)
        saved = vm.run("redis-cli save", 120)
        vm.check(ROW, "redis-server saves", saved.out.strip() == "OK", f"{filled.words} {saved.words}", "OK")
        told = vm.value(megapage("status", unit, "--json").json, "services", 0, "services", 0)
        true = truth.backing(int(pid))
        vm.same(ROW, "status: its main process", vm.value(told, "main_pid"), int(pid))
        vm.same(ROW, "status: its huge memory", vm.value(told, "memory", "thp_bytes"), true.thp, within=8 * vm.MIB)
        vm.check(ROW, "status: and the share of it", true.thp > 8 * vm.MIB and (vm.value(told, "huge_share") or 0) > 0.3, told, true.thp)
        taken = vm.run(["/usr/local/bin/megapage", "reclaim", "redis-server"], 120)
        held = vm.run("redis-cli get k99999")
        vm.check(ROW, "reclaim: of a service, whose data stay", taken.status in (0, 1) and held.out.strip() == "x" * 300,
                 f"{taken.words} {held.words}", "x...")
    vm.check(ROW, f"{unit}: its children do not have it", "ready True" not in journal(unit), journal(unit), "ready False")
    again = started(unit, "restart")
    vm.check(ROW, f"{unit}: a restart", again not in ("0", pid) and "libmegapage.so" in maps(again), again, "another process")
    stopped = vm.run(["systemctl", "stop", unit], 120)
    vm.check(ROW, f"{unit}: a stop", stopped.status == 0 and show(unit, "ActiveState").get("ActiveState") == "inactive",
             f"{stopped.words} {journal(unit)}", "inactive")
    off = megapage("disable", unit)
    vm.check(ROW, f"{unit}: disable leaves what was there", off.status == 0 and files() == before,
             sorted(str(path) for path in files().keys() ^ before.keys()), [])
    last = started(unit, "start")
    vm.check(ROW, f"{unit}: afterwards without the library", "libmegapage" not in maps(last), maps(last)[:200], "none")
    vm.run(["systemctl", "stop", unit], 120)

# THP off for one service, by the launcher: the main process stays the program.
done = megapage("enable", "notify-plain", "--thp", "never", "--now")
pid = started("notify-plain", "start")
status = pathlib.Path(f"/proc/{pid}/status").read_text() if pid not in (None, "0") else ""
vm.check(ROW, "--thp never: the program runs without THP, in the launcher's place",
         # The launcher executes the interpreter that the script names.
         "THP_enabled:\t0" in status and command_of(pid) in ("notifying", "python3"), f"{done.words} {status[-300:]}", "THP_enabled: 0")
megapage("disable", "notify-plain", "--now")
vm.run("systemctl stop notify-plain")
forks = megapage("enable", "forks")
pid = started("forks", "start")
vm.same(ROW, "a forking service: the main process is the one of its PID file", command_of(pid), "sleep")
vm.run("systemctl stop forks")
megapage("disable", "forks")
# A service that fails twice under megapage starts without it the third time. Once enabled again, it
# starts as usual.
(UNITS / "picky.service").write_text(
    "[Service]\nRestart=on-failure\nRestartSec=200ms\nExecStart=/bin/bash -c '[ \"$$MEGAPAGE\" = off ] || exit 3; exec sleep 600'\n"
)
vm.run("systemctl daemon-reload")
before = files()
megapage("enable", "picky")
vm.run(["systemctl", "start", "--no-block", "picky"])
for _ in range(100):
    state = show("picky", "ActiveState", "SubState", "NRestarts", "MainPID")
    if state.get("NRestarts") == "2" and state.get("SubState") == "running":
        break
    time.sleep(0.2)
pid = state.get("MainPID")
vm.check(ROW, "a service that fails twice: plain the third time", state.get("NRestarts") == "2" and "libmegapage" not in maps(pid),
         f"{state} {journal('picky')}", "NRestarts=2")
said = megapage("status", "picky")
vm.check(ROW, "status says so", "starts without megapage, because it failed twice" in said.out, said.words, "failed twice")
megapage("enable", "picky", "--heap", "thp")
vm.check(ROW, "enable forgets it", "starts as without" not in megapage("status", "picky").out, "", "")
vm.run("systemctl stop picky")
megapage("disable", "picky")
vm.check(ROW, "after all of it: nothing is left", files() == before, sorted(str(path) for path in files().keys() ^ before.keys()), [])
