// program: Go, a map of pointers
// class: Go
// version: go version
// random: yes
// expect: 143304852858944
// large: 3g

package main

type item struct {
	key, value uint64
	next       *item
}

func main() {
	count := uint64(2_000_000)
	if size := sizeWanted(); size > 0 {
		count = uint64(size) / 90
	}
	items := make(map[uint64]*item)
	state := uint64(1)
	keys := make([]uint64, count)
	for i := range keys {
		keys[i] = next(&state)
		items[keys[i]] = &item{key: keys[i], value: uint64(i)}
	}
	steady()
	total := uint64(0)
	var last *item
	for i := 0; i < 10_000_000; i++ {
		found := items[keys[next(&state)%count]]
		found.value += uint64(i)
		found.next, last = last, found
		total += found.value
	}
	end(total)
}
