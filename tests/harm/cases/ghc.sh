# program: Haskell: a map of 200,000 keys
# version: ghc --version
program=$SCRATCH/work
[ -e "$program" ] || { cp "$SRC/Work.hs" . && ghc -v0 -O1 -threaded -rtsopts -o "$program" Work.hs; }
"$RUN" "$program"
