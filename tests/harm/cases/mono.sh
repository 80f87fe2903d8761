# program: Mono: C#
# version: mono --version
program=$SCRATCH/Work.exe
[ -e "$program" ] || mcs -out:"$program" "$SRC/Work.cs"
"$RUN" mono "$program"
