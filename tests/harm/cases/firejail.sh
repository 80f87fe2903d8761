# program: firejail, a sandbox that is set-user-ID root
# version: firejail --version
status=0
"$RUN" firejail --quiet --noprofile sh -c 'echo inside; seq 1 100000 | sort -rn | head -2; exit 4' || status=$?
echo "status $status"
