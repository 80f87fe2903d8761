# program: mold, a linker with threads and an allocator in it
# version: mold --version
object=$SCRATCH/t.o
[ -e "$object" ] || { echo 'int main(void) { return 9; }' | cc -x c -c -o "$object" -; }
"$RUN" cc -fuse-ld=mold -Wl,--build-id=none -o t "$object"
status=0
./t || status=$?
echo "status $status"
