# program: awk, a table of 200,000 keys
# version: awk -W version
# more: yes
# machine: yes
text=$SCRATCH/text
[ -e "$text" ] || seq 1 700000 | awk '{ print ($1 * 7919) % 1000003, "line", $1 % 977, "of a text" }' >"$text"
"$RUN" awk '{ n[$1 % 200000] += $3 } END { for (k in n) { s += n[k]; c++ } print c, s }' "$text"
