# program: zstd, level 19 with threads
# version: zstd --version
text=$SCRATCH/text
[ -e "$text" ] || seq 1 700000 | awk '{ print ($1 * 7919) % 1000003, "line", $1 % 977, "of a text" }' >"$text"
head -c 4000000 "$text" >part
"$RUN" zstd -q -19 -T2 part
"$RUN" zstd -q -dc part.zst | cmp - part
sha256sum <part.zst
