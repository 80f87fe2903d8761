# program: lzop, which defines functions with names of the C library
# version: lzop --version
# quick: yes
text=$SCRATCH/text
[ -e "$text" ] || seq 1 700000 | awk '{ print ($1 * 7919) % 1000003, "line", $1 % 977, "of a text" }' >"$text"
"$RUN" lzop -q -f -o out.lzo "$text"
"$RUN" lzop -q -dc out.lzo | sha256sum
