# program: sed, grep, cut, tr and wc in a pipe
# version: sed --version
# more: yes
# machine: yes
text=$SCRATCH/text
[ -e "$text" ] || seq 1 700000 | awk '{ print ($1 * 7919) % 1000003, "line", $1 % 977, "of a text" }' >"$text"
"$RUN" sh -c 'sed "s/line/row/" "$0" | grep -v "1 of" | cut -d" " -f1,3 | tr 0-4 a-e | wc' "$text"
