# program: GNU Octave: linear algebra
# version: octave-cli --version
"$RUN" octave-cli --norc --quiet --eval 'a = reshape(mod((1:360000) * 7919, 1003), 600, 600) + eye(600) * 1e4; x = a \ ones(600, 1);
    printf("%.10f\n", sum(x)); s = struct(); for n = 1:2000; s.(sprintf("k%d", n)) = ones(1, n); end; printf("%d\n", numfields(s)); exit(4)'
