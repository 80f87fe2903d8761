-- program: Lua, tables of tables
-- class: interpreter
-- version: lua5.4 -v
-- random: yes
-- expect: 1468186550154
package.path = arg[0]:gsub("cases/[^/]*$", "lib/?.lua")
local phases = require("phases")

local count = 700000
local items, x = {}, 1
for n = 1, count do
  items["key" .. n] = { id = n, name = "name " .. n % 1000 }
end
local wanted = {}
for n = 1, 700000 do
  x = (x * 1103515245 + 12345) & 0x7fffffff
  wanted[n] = "key" .. (x >> 4) % count + 1
end
phases.steady()
local total = 0
for _ = 1, 6 do
  for n = 1, #wanted do
    local item = items[wanted[n]]
    total = total + item.id + #item.name
  end
end
phases.finish(total)
