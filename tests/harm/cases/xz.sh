# program: xz, compressing and decompressing
# version: xz --version
# more: yes
text=$SCRATCH/text
[ -e "$text" ] || seq 1 700000 | awk '{ print ($1 * 7919) % 1000003, "line", $1 % 977, "of a text" }' >"$text"
head -c 6000000 "$text" >part
"$RUN" xz -T1 -6 -k part
"$RUN" xz -T2 -dc part.xz | cmp - part
sha256sum <part.xz
