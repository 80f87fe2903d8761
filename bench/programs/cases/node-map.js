// program: Node.js, a Map of objects
// class: Node
// version: node --version
// random: yes
// expect: 1498008390468
// large: 2g
// large-run: node --max-old-space-size=4096 {case}
"use strict";
const phases = require("../lib/phases.js");

const count = phases.SIZE ? Math.floor(phases.SIZE / 330) : 1500000;
const map = new Map();
for (let i = 0; i < count; i++) {
  map.set(`key${i}`, { id: i, name: `name ${i % 1000}`, next: null });
}
let x = 1;
const keys = [];
for (let i = 0; i < (phases.SIZE ? 3000000 : 1000000); i++) {
  x = (Math.imul(x, 1103515245) + 12345) >>> 0;
  keys.push(`key${x % count}`);
}
phases.steady();
let total = 0;
for (let round = 0; round < 2; round++) {
  let last = null;
  for (const key of keys) {
    const item = map.get(key);
    item.next = last;
    last = item;
    total += item.id + item.name.length;
  }
}
phases.end(total);
