# program: SQLite, a database in memory
# version: sqlite3 --version
# quick: yes
# more: yes
# machine: yes
"$RUN" sqlite3 :memory: "create table t(a integer primary key, b text); with recursive n(i) as (select 1 union all
select i + 1 from n where i < 400000) insert into t select i, hex(i * 7919) || 'xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx' from n;
create index u on t(b); select count(*), sum(length(b)), max(b) from t; delete from t where a % 3 = 0; select a from t order by b limit 5;"
