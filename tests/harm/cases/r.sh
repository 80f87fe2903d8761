# program: R: a regression
# version: Rscript --version
"$RUN" Rscript --vanilla -e 'set.seed(1); x <- matrix(rnorm(1e6), ncol = 20); y <- x %*% 1:20 + rnorm(nrow(x));
    print(round(coef(lm(y ~ x)), 6)); print(sum(sort(runif(1e6)) > 0.5)); quit(status = 3)'
