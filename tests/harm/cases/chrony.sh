# program: chronyd: one look at the clock, with its memory locked, and with its filter
# version: chronyd --version || apt-cache show chrony | grep Version
# seconds: 60
PATH=$PATH:/usr/sbin:$SCRATCH/usr/sbin:$SCRATCH/usr/bin
# Its package would replace the machine's time daemon.
command -v chronyd >/dev/null || {
    (cd "$SCRATCH" && apt-get -qq download chrony && dpkg -x chrony_*.deb .) >words 2>&1 || { tail -1 words >&2; exit 77; }
}
for options in -m "-F 1"; do
    status=0
    "$RUN" chronyd -Q -t 2 $options 'server 127.0.0.1 iburst maxsamples 1' 'cmdport 0' "pidfile $WORK/pid" 2>words || status=$?
    sed 's/^[^ ]* //' words
    echo "status $status"
done
"$RUN" chronyc -n -h "$WORK/none" tracking || echo "status $?"
