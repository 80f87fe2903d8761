# program: fakeroot
# version: fakeroot --version
"$RUN" fakeroot sh -c 'touch file; chown 12:34 file; stat -c %u:%g file'
