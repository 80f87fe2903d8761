# program: Erlang, with the allocators that take least (+Mea min)
# version: erl -noshell -eval 'io:format(erlang:system_info(otp_release)), halt().'
cp "$SRC/t.erl" .
[ -e "$SCRATCH/t.beam" ] || { erlc t.erl && cp t.beam "$SCRATCH/"; }
cd "$SCRATCH"
"$RUN" erl +Mea min +S 1:1 +SDio 1 +SDcpu 1:1 -noshell -noinput -s t main
