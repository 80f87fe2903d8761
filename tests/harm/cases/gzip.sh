# program: tar and gzip
# version: gzip --version
# more: yes
text=$SCRATCH/text
[ -e "$text" ] || seq 1 700000 | awk '{ print ($1 * 7919) % 1000003, "line", $1 % 977, "of a text" }' >"$text"
"$RUN" tar --mtime=@0 --owner=0 --group=0 -C "$SCRATCH" -cf all.tar text
"$RUN" gzip -n all.tar
"$RUN" gzip -dc all.tar.gz | sha256sum
