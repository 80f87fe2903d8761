# program: Perl, a hash of arrays
# class: interpreter
# version: perl -e 'print "$^V\n"'
# random: yes
# expect: 524702040024
use strict;
use warnings;
use FindBin;
use lib "$FindBin::Bin/../lib";
use Phases;

my $count = 700_000;
my %items = map { ("key$_" => [$_, "name " . ($_ % 1000)]) } 0 .. $count - 1;
my ($x, @wanted) = (1);
for (1 .. 500_000) {
    $x = ($x * 1103515245 + 12345) & 0x7fffffff;
    push @wanted, "key" . (($x >> 4) % $count);
}
Phases::steady();
my $total = 0;
for (1 .. 3) {
    for my $key (@wanted) {
        my $item = $items{$key};
        $total += $item->[0] + length $item->[1];
    }
}
Phases::finish($total);
