// program: Node.js, parsing and writing JSON
// class: Node
// version: node --version
// expect: 50014905551
"use strict";
const phases = require("../lib/phases.js");

const records = [];
for (let i = 0; i < 100000; i++) {
  records.push({ id: i, name: `name ${i}`, tags: ["a", `b${i % 9}`], place: { lat: i % 90, lon: i % 180 } });
}
let text = JSON.stringify(records);
phases.steady();
let total = 0;
for (let round = 0; round < 10; round++) {
  const parsed = JSON.parse(text);
  for (const record of parsed) {
    record.id += 1;
    total += record.id + record.tags.length;
  }
  text = JSON.stringify(parsed);
}
phases.end(total + text.length);
