# program: OpenJDK (HotSpot)
# version: java --version
# modes: default runtime outside
# seconds: 150
mkdir -p "$SCRATCH/java"
[ -e "$SCRATCH/java/Work.class" ] || javac -d "$SCRATCH/java" "$SRC/Work.java"
[ -e "$SCRATCH/java/plain.txt" ] || java -Xmx512m -cp "$SCRATCH/java" Work >"$SCRATCH/java/plain.txt"
"$RUN" java -Xmx512m -cp "$SCRATCH/java" Work >under.txt
cmp "$SCRATCH/java/plain.txt" under.txt
