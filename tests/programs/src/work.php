<?php
// Keeps the engine's allocator and cycle collector busy, and prints a checksum.
function work(int $seed): string
{
    mt_srand($seed);
    $map = [];
    for ($i = 0; $i < 800000; $i++) {
        $key = mt_rand(0, 60000);
        $map[$key] = ['key' => $key, 'text' => 'v' . mt_rand(), 'list' => [$i, $key]];
        if ($i % 10 === 0) {
            $a = new stdClass();
            $a->self = $a; // a cycle, left to the collector
        }
    }
    ksort($map);
    $big = str_repeat(pack('V', mt_rand()), 4 << 20);
    return hash('sha256', json_encode($map) . $big);
}
$sums = [work(1), work(2)];
gc_collect_cycles();
echo 'php: ', implode(' ', $sums), "\n";
