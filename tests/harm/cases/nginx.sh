# program: nginx, a file over a socket
# version: nginx -v
mkdir -p www
seq 1 100000 >www/file
cat >nginx.conf <<E
user root; daemon off; pid nginx.pid; worker_processes 2; error_log stderr crit; events { worker_connections 64; }
http { access_log off; client_body_temp_path t1; proxy_temp_path t2; fastcgi_temp_path t3; uwsgi_temp_path t4; scgi_temp_path t5;
server { listen unix:$WORK/socket; root $WORK/www; gzip on; gzip_types *; } }
E
trap '[ -z "${server:-}" ] || kill -9 $server 2>/dev/null || true' EXIT
"$RUN" nginx -p "$WORK" -c nginx.conf -e stderr &
server=$!
for _ in $(seq 200); do [ -S socket ] && break || sleep 0.05; done
for _ in 1 2 3; do curl -s --compressed --unix-socket socket http://x/file | sha256sum; done
kill -QUIT $server
status=0
wait $server || status=$?
server=
echo "status $status"
