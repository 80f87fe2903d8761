# program: m4: 20,000 definitions
# version: m4 --version
seq 1 20000 | awk '{ print "define(`w" $1 "'\'', `w" $1 - 1 " word'\'')dnl" } END { print "w40" }' >input
"$RUN" m4 input
