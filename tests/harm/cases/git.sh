# program: git: a repository of 400 commits, repacked
# version: git --version
export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null
for n in $(seq 400); do
    printf 'commit refs/heads/main\ncommitter a <a@b> %d +0000\ndata 1\nx\nM 644 inline f%d\ndata <<E\n%s\nE\n\n' \
        "$n" $((n % 50)) "$(seq $n $((n + 99)))"
done >stream
git init -q -b main repository
cd repository
"$RUN" git fast-import --quiet <../stream
"$RUN" git gc --quiet
"$RUN" git fsck --no-progress
"$RUN" git log --format=%H main | sha256sum
