# program: SQLite command line
# version: sqlite3 --version
# modes: default preload-thp tunable
sqlite3 plain.db <"$SRC/work.sql" >plain.txt
"$RUN" sqlite3 under.db <"$SRC/work.sql" >under.txt
cmp plain.txt under.txt
sqlite3 plain.db .dump | sha256sum >plain.sum
sqlite3 under.db .dump | sha256sum >under.sum
cmp plain.sum under.sum
