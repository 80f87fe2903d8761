# program: memcached
# version: memcached --version
trap '[ -z "${server:-}" ] || kill -9 $server 2>/dev/null || true' EXIT
"$RUN" memcached -u root -s "$WORK/socket" -m 64 -t 2 &
server=$!
for _ in $(seq 200); do [ -S socket ] && break || sleep 0.05; done
/usr/bin/python3 -c '
import socket
s = socket.socket(socket.AF_UNIX); s.connect("socket"); f = s.makefile("rwb")
for n in range(20000):
    f.write(b"set k%d 0 0 500 noreply\r\n%s\r\n" % (n, b"%09d" % n * 55 + b"12345"))
f.write(b"get k123 k19999\r\n"); f.flush()
while (line := f.readline()) != b"END\r\n":
    print(line[:40])'
kill $server
status=0
wait $server || status=$?
server=
echo "status $status"
