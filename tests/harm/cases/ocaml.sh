# program: OCaml: a table of 300,000 keys
# version: ocamlopt -version
program=$SCRATCH/work
[ -e "$program" ] || { cp "$SRC/work.ml" . && ocamlopt -o "$program" work.ml; }
"$RUN" "$program"
