# program: Ruby, which switches THP off for itself
# version: ruby --version
"$RUN" ruby -e 'h = {}; 200000.times { |n| h["k#{n * 7919 % 1000003}"] = "v" * (n % 50) }
puts h.size, h.select { |k, v| k.end_with?("7") }.sum { |k, v| v.size }; exit 6'
