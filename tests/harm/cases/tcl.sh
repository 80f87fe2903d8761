# program: Tcl
# version: echo "puts [info patchlevel]" | tclsh
echo 'for {set n 0} {$n < 150000} {incr n} { set h([expr {$n * 7919 % 1000003}]) [string repeat v [expr {$n % 40}]] }
puts [array size h]; exit 4' >t.tcl
"$RUN" tclsh t.tcl
