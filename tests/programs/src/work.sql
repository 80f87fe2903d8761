-- A deterministic workload: bulk inserts, indexes, joins, full text, a big sort, deletes, vacuum.
PRAGMA journal_mode = WAL;
PRAGMA cache_size = -65536;
PRAGMA temp_store = MEMORY;
CREATE TABLE item (id INTEGER PRIMARY KEY, key INTEGER, text TEXT, body BLOB);
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 400000)
INSERT INTO item SELECT i, (i * 7919) % 104729, 'text ' || (i * 31 % 9973), zeroblob(i % 300) FROM n;
CREATE INDEX item_key ON item (key);
CREATE INDEX item_text ON item (text, key);
SELECT 'count', count(*), sum(key), sum(length(body)) FROM item;
SELECT 'join', count(*), sum(a.id % 1000) FROM item a JOIN item b ON a.key = b.key AND a.id < b.id;
SELECT 'group', count(*), max(c) FROM (SELECT text, count(*) c FROM item GROUP BY text);
SELECT 'sort', id FROM (SELECT id, row_number() OVER (ORDER BY body, text, key DESC, id) r FROM item)
WHERE r % 40000 = 1;
CREATE VIRTUAL TABLE words USING fts5 (text);
INSERT INTO words SELECT text || ' ' || key FROM item WHERE id <= 50000;
SELECT 'match', count(*) FROM words WHERE words MATCH '7919 OR 31';
DELETE FROM item WHERE id % 3 = 0;
UPDATE item SET body = zeroblob(600) WHERE id % 5 = 0;
SELECT 'after', count(*), sum(length(body)) FROM item;
VACUUM;
PRAGMA integrity_check;
