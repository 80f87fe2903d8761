// The bench's protocol (protocol.py) for Go.

package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
)

func send(text string) {
	name := os.Getenv("BENCH_PHASES")
	if name == "" {
		fmt.Print(text)
		return
	}
	out, err := os.OpenFile(name, os.O_WRONLY, 0)
	if err != nil {
		panic(err)
	}
	fmt.Fprint(out, text)
	out.Close()
	in, err := os.Open(os.Getenv("BENCH_GO"))
	if err != nil {
		panic(err)
	}
	if _, err := bufio.NewReader(in).ReadString('\n'); err != nil {
		panic(err)
	}
	in.Close()
}

// sizeWanted returns the bytes that the program is to take in the class large; else 0.
func sizeWanted() int {
	size, _ := strconv.Atoi(os.Getenv("BENCH_SIZE"))
	return size
}

// steady: the set-up is done; what follows is measured.
func steady() { send("phase steady\n") }

// end: the measured work is done, and what it made is still there.
func end(answer uint64) { send(fmt.Sprintf("answer %d\nphase end\n", answer)) }

func next(state *uint64) uint64 {
	*state += 0x9E3779B97F4A7C15
	z := *state
	z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9
	z = (z ^ (z >> 27)) * 0x94D049BB133111EB
	return z ^ (z >> 31)
}
