# program: Perl: hashes, sorting, regular expressions
# version: perl -v | sed -n 2p
# quick: yes
# more: yes
# machine: yes
"$RUN" perl -e 'my %h; $h{"k" . ($_ * 7919 % 1000003)} = "v" x ($_ % 50) for 1 .. 200000;
    my $n = 0; for (sort keys %h) { $n += length $h{$_} if /7$/ } print scalar(keys %h), " $n\n"; exit 5'
