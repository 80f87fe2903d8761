# program: MariaDB, index look-ups in InnoDB's buffer pool
# class: database
# version: mariadbd --version
# random: yes
# user: nobody
# data: mariadb
# before: cp -r {data}/mariadb {work}/db
# server: mariadbd --no-defaults --datadir={work}/db --socket={socket} --skip-networking --innodb-buffer-pool-size=512M --innodb-log-file-size=512M --innodb-flush-log-at-trx-commit=0 --skip-log-bin --innodb-doublewrite=0 --pid-file={work}/pid
# large: 4g
# large-server: mariadbd --no-defaults --datadir={work}/db --socket={socket} --skip-networking --innodb-buffer-pool-size={mib}M --innodb-log-file-size=4G --innodb-flush-log-at-trx-commit=0 --innodb-fast-shutdown=2 --skip-log-bin --innodb-doublewrite=0 --pid-file={work}/pid
# run: {python} {case} {socket}
# expect: 398359620
import sys
import phases
import servers

count = phases.SIZE // 650 or 800_000
repeats, looked_up = (40, 2_000_000) if phases.SIZE else (6, 700_000)
client = ["mariadb", "--no-defaults", "--socket", sys.argv[1], "-u", "root", "-N", "-B"]
servers.query(client, "select 1")
servers.query(client, f"""create database bench; use bench;
    create table items (id int primary key, price int, name varchar({600 if phases.SIZE else 80})) engine=InnoDB;
    insert into items select seq, seq % 1009, repeat(concat('name ', seq), {repeats}) from seq_0_to_{count - 1};""")
phases.steady()
total = servers.query(client, f"""use bench;
    select sum(price + length(name)) from seq_1_to_{looked_up} s straight_join items
    on items.id = (s.seq * 611953 + 12345) % {count};""")
phases.end(total)
