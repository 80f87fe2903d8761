# program: bubblewrap, a sandbox with /usr alone
# version: bwrap --version
status=0
"$RUN" bwrap --ro-bind /usr /usr --symlink usr/lib /lib --symlink usr/lib64 /lib64 --symlink usr/bin /bin --unshare-all \
    --die-with-parent sh -c 'echo inside; seq 1 100000 | sort -rn | head -2; exit 4' || status=$?
echo "status $status"
