# program: lz4
# version: lz4 --version
text=$SCRATCH/text
[ -e "$text" ] || seq 1 700000 | awk '{ print ($1 * 7919) % 1000003, "line", $1 % 977, "of a text" }' >"$text"
"$RUN" lz4 -q -9 "$text" out.lz4
"$RUN" lz4 -q -dc out.lz4 | sha256sum
