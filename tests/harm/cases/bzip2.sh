# program: bzip2
# version: bzip2 --help
text=$SCRATCH/text
[ -e "$text" ] || seq 1 700000 | awk '{ print ($1 * 7919) % 1000003, "line", $1 % 977, "of a text" }' >"$text"
"$RUN" bzip2 -kc "$text" | sha256sum
