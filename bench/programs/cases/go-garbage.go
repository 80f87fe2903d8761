// program: Go, short-lived objects beside a live tree
// class: Go
// version: go version
// expect: 46136703

package main

type tree struct{ left, right *tree }

func build(depth int) *tree {
	if depth == 0 {
		return &tree{}
	}
	return &tree{build(depth - 1), build(depth - 1)}
}

func (t *tree) count() uint64 {
	if t.left == nil {
		return 1
	}
	return 1 + t.left.count() + t.right.count()
}

func main() {
	long := build(21)
	steady()
	total := uint64(0)
	for i := 0; i < 640; i++ {
		total += build(15).count()
	}
	end(total + long.count())
}
