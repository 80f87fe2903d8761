# program: Erlang: tables and processes
# version: erl -noshell -eval 'io:format(erlang:system_info(otp_release)), halt().'
cp "$SRC/t.erl" .
[ -e "$SCRATCH/t.beam" ] || { erlc t.erl && cp t.beam "$SCRATCH/"; }
cd "$SCRATCH"
"$RUN" erl +S 2:2 -noshell -noinput -s t main
