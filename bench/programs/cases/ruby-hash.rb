# program: Ruby, a hash of objects
# class: interpreter
# version: ruby --version
# random: yes
require_relative "../lib/phases"

Item = Struct.new(:id, :name)
count = 700_000
items = {}
count.times { |n| items["key#{n}"] = Item.new(n, "name #{n % 1000} of many, too long to be held in place") }
generator = Random.new(1)
wanted = Array.new(500_000) { "key#{generator.rand(count)}" }
Phases.steady
total = 0
3.times { wanted.each { |key| item = items[key]; total += item.id + item.name.size } }
Phases.end(total)
