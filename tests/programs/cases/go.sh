# program: Go, static binary
# version: go version
# modes: default outside
# seconds: 150
build=$SCRATCH/go-work
[ -e "$build" ] || GOCACHE=$SCRATCH/go-cache CGO_ENABLED=0 go build -o "$build" "$SRC/work.go"
"$build" >plain.txt
"$RUN" "$build" >under.txt
cmp plain.txt under.txt
