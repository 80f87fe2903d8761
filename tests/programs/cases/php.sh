# program: PHP
# version: php --version
# modes: default runtime
php "$SRC/work.php" >plain.txt
"$RUN" php "$SRC/work.php" >under.txt
cmp plain.txt under.txt
