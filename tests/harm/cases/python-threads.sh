# program: Python: threads, a fork and a child
# version: /usr/bin/python3 --version
# more: yes
# machine: yes
"$RUN" /usr/bin/python3 -c '
import hashlib, os, subprocess, threading
d = {str(n): "v" * (n % 97) for n in range(150000)}
def work():
    assert sorted(d)[0] == "0"
threads = [threading.Thread(target=work) for _ in range(3)]
[t.start() for t in threads]; [t.join() for t in threads]
print(hashlib.sha256(repr(sorted(d.items())).encode()).hexdigest(), flush=True)
pid = os.fork()
if pid == 0:
    d["x"] = "y"; os._exit(7 if len(d) == 150001 else 9)
print(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), len(d), subprocess.run(["echo", "child"], capture_output=True).stdout)'
