# program: bc: 2 to the 30,000th
# version: bc --version
echo '2^30000' | "$RUN" bc | sha256sum
