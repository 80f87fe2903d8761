# program: Node.js
# version: node --version
# modes: default outside preload-thp
node "$SRC/work.js" >plain.txt
"$RUN" node "$SRC/work.js" >under.txt
cmp plain.txt under.txt
