# program: a signal to the process group (C)
# version: cc --version
program=$SCRATCH/signals
[ -e "$program" ] || cc -O1 -w -fno-builtin -o "$program" "$SRC/signals.c"
set -m
"$RUN" "$program" >counted &
group=$!
for _ in $(seq 400); do grep -q ready counted && break || sleep 0.05; done
kill -HUP -- -$group
sleep 0.1
kill -USR2 -- -$group
status=0
wait $group || status=$?
cat counted
echo "status $status"
