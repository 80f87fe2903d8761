# program: fakechroot
# version: fakechroot --version
mkdir root
cp "$SRC/hello.c" root/
export FAKECHROOT_EXCLUDE_PATH=/usr:/bin:/lib:/lib64:/etc:/proc:/dev
"$RUN" fakechroot chroot "$WORK/root" /bin/cat /hello.c | sha256sum
