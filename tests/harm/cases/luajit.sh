# program: LuaJIT, with an allocator that maps its memory
# version: luajit -v
"$RUN" luajit -e 'local t = {} for n = 1, 300000 do t["k" .. n * 7919 % 1000003] = string.rep("v", n % 40) end
local c, s = 0, 0 for k, v in pairs(t) do c = c + 1 s = s + #v end print(c, s)'
