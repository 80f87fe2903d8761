# program: sh, with an exit status other than 0
# version: uname -r
# quick: yes
# more: yes
# machine: yes
"$RUN" sh -c 'echo hello; echo words >&2; exit 3'
