# program: sort(1), with a buffer of 64 MiB
# version: sort --version
# quick: yes
# more: yes
# machine: yes
text=$SCRATCH/text
[ -e "$text" ] || seq 1 700000 | awk '{ print ($1 * 7919) % 1000003, "line", $1 % 977, "of a text" }' >"$text"
LC_ALL=C "$RUN" sort -S 64M -k3,3n -k1,1 "$text" | sha256sum
