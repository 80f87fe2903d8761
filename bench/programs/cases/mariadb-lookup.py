# program: MariaDB, index look-ups in InnoDB's buffer pool
# class: database
# version: mariadbd --version
# random: yes
# user: nobody
# data: mariadb
# before: cp -r {data}/mariadb {work}/db
# server: mariadbd --no-defaults --datadir={work}/db --socket={socket} --skip-networking --innodb-buffer-pool-size=512M --innodb-log-file-size=512M --innodb-flush-log-at-trx-commit=0 --skip-log-bin --innodb-doublewrite=0 --pid-file={work}/pid
# run: {python} {case} {socket}
# expect: 398359620
import sys
import phases
import servers

client = ["mariadb", "--no-defaults", "--socket", sys.argv[1], "-u", "root", "-N", "-B"]
servers.query(client, "select 1")
servers.query(client, """create database bench; use bench;
    create table items (id int primary key, price int, name varchar(80)) engine=InnoDB;
    insert into items select seq, seq % 1009, repeat(concat('name ', seq), 6) from seq_0_to_799999;""")
phases.steady()
total = servers.query(client, """use bench;
    select sum(price + length(name)) from seq_1_to_700000 s straight_join items
    on items.id = (s.seq * 611953 + 12345) % 800000;""")
phases.end(total)
