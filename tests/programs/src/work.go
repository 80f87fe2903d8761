// A Go program that keeps the collector, many goroutines and child processes busy, and prints a checksum.
package main

import (
	"fmt"
	"hash/fnv"
	"os"
	"os/exec"
	"runtime"
	"sort"
	"strings"
	"sync"
)

type node struct {
	left, right *node
	key         uint64
	pad         [40]byte
}

func (n *node) insert(key uint64) *node {
	if n == nil {
		return &node{key: key}
	}
	if key < n.key {
		n.left = n.left.insert(key)
	} else {
		n.right = n.right.insert(key)
	}
	return n
}

func (n *node) sum() uint64 {
	if n == nil {
		return 0
	}
	return n.key*31 + n.left.sum()*7 + n.right.sum()*3
}

func work(seed uint64) uint64 {
	var root *node
	counts := map[uint64]string{}
	random := seed*0x9e3779b97f4a7c15 + 1
	for i := 0; i < 150000; i++ {
		random ^= random << 13
		random ^= random >> 7
		random ^= random << 17
		root = root.insert(random)
		counts[random%50000] = strings.Repeat("x", int(random%100))
	}
	keys := make([]uint64, 0, len(counts))
	for key := range counts {
		keys = append(keys, key)
	}
	sort.Slice(keys, func(a, b int) bool { return keys[a] < keys[b] })
	hash := fnv.New64a()
	for _, key := range keys {
		fmt.Fprint(hash, key, len(counts[key]))
	}
	big := make([]uint64, 4<<20)
	for i := range big {
		big[i] = uint64(i) ^ seed
	}
	return root.sum() ^ hash.Sum64() ^ big[len(big)/3]
}

func main() {
	sums := make([]uint64, 6)
	var group sync.WaitGroup
	for i := range sums {
		group.Add(1)
		go func(i int) {
			defer group.Done()
			sums[i] = work(uint64(i + 1))
		}(i)
	}
	group.Wait()
	runtime.GC()
	out, err := exec.Command("/bin/echo", "child").Output()
	if err != nil || string(out) != "child\n" {
		fmt.Fprintln(os.Stderr, "child process:", err, string(out))
		os.Exit(1)
	}
	fmt.Println("go:", sums)
}
