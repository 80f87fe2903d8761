<?php
// program: PHP, arrays of arrays
// class: PHP
// version: php --version
// random: yes
// expect: 998493103010
require __DIR__ . "/../lib/phases.php";

$count = 1000000;
$items = [];
for ($i = 0; $i < $count; $i++) {
    $items["key$i"] = ["id" => $i, "name" => "name " . ($i % 1000)];
}
$x = 1;
$wanted = [];
for ($i = 0; $i < 1000000; $i++) {
    $x = ($x * 1103515245 + 12345) & 0x7fffffff;
    $wanted[] = "key" . (($x >> 4) % $count);
}
steady();
$total = 0;
for ($round = 0; $round < 2; $round++) {
    foreach ($wanted as $key) {
        $item = $items[$key];
        $total += $item["id"] + strlen($item["name"]);
    }
}
end_phase($total);
