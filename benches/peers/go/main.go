// Lock clients for Go, as a child of benches/peers: it reads orders line by line and answers each
// with a line of numbers. Times are in ns.
//
//	names                                 the subjects, which are no numbers
//	one_thread SUBJECT KEY CYCLES         each cycle of lock + unlock
//	own_names SUBJECT KEY THREADS MS      the whole time, then each cycle; a key for each thread
//	one_name SUBJECT KEY THREADS MS HOLD  thread, asked, granted, released of each turn on one key,
//	                                      which is held for HOLD µs
//	hold SUBJECT KEY COUNT                takes so many keys and keeps them until "drop", or answers 0
//
// A thread is a goroutine. FAIRLOCK_BENCH_URL names the server.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"
)

var epoch = time.Now()

func now() int64 { return int64(time.Since(epoch)) }

func main() {
	// A slash at the end is an empty number of a database to one of them.
	subjects := connect(strings.TrimSuffix(os.Getenv("FAIRLOCK_BENCH_URL"), "/"))
	orders := bufio.NewScanner(os.Stdin)
	out := bufio.NewWriter(os.Stdout)
	for orders.Scan() {
		answer(strings.Fields(orders.Text()), subjects, out)
		out.WriteByte('\n')
		out.Flush()
	}
}

func answer(order []string, subjects []subject, out *bufio.Writer) {
	if order[0] == "names" {
		names := make([]string, len(subjects))
		for i, s := range subjects {
			names[i] = s.name
		}
		out.WriteString(strings.Join(names, "\t"))
		return
	}
	var numbers []int64
	if order[0] == "drop" {
		drop()
	} else {
		s := subjects[number(order[1])]
		key, count := order[2], number(order[3])
		switch order[0] {
		case "one_thread":
			numbers = oneThread(s, key, count)
		case "own_names":
			numbers = ownNames(s, key, count, milliseconds(order[4]))
		case "one_name":
			holdFor := time.Duration(number(order[5])) * time.Microsecond
			numbers = oneName(s, key, count, milliseconds(order[4]), holdFor)
		case "hold":
			numbers = hold(s, key, count)
		}
	}
	for _, n := range numbers {
		fmt.Fprint(out, n, " ")
	}
}

func number(text string) int {
	n, err := strconv.Atoi(text)
	must(err)
	return n
}

func milliseconds(text string) time.Duration {
	return time.Duration(number(text)) * time.Millisecond
}

func must(err error) {
	if err != nil {
		panic(err)
	}
}

func oneThread(s subject, key string, cycles int) []int64 {
	lock := s.lock(key)
	times := make([]int64, cycles)
	for i := range times {
		started := now()
		lock()()
		times[i] = now() - started
	}
	return times
}

func ownNames(s subject, key string, threads int, runFor time.Duration) []int64 {
	times := make([][]int64, threads)
	elapsed := together(threads, runFor, func(thread int, over *atomic.Bool) {
		lock := s.lock(fmt.Sprint(key, ":", thread))
		for !over.Load() {
			started := now()
			lock()()
			times[thread] = append(times[thread], now()-started)
		}
	})
	all := []int64{elapsed}
	for _, own := range times {
		all = append(all, own...)
	}
	return all
}

func oneName(s subject, key string, threads int, runFor, holdFor time.Duration) []int64 {
	taken := make([][]int64, threads)
	together(threads, runFor, func(thread int, over *atomic.Bool) {
		lock := s.lock(key)
		for !over.Load() {
			asked := now()
			unlock := lock()
			granted := now()
			if holdFor > 0 {
				time.Sleep(holdFor)
			}
			released := now()
			unlock()
			taken[thread] = append(taken[thread], int64(thread), asked, granted, released)
		}
	})
	var all []int64
	for _, own := range taken {
		all = append(all, own...)
	}
	return all
}

// together runs the body in this many goroutines and returns how long they were asked to go on.
func together(threads int, runFor time.Duration, body func(int, *atomic.Bool)) int64 {
	var over atomic.Bool
	var ended sync.WaitGroup
	started := now()
	for thread := range threads {
		ended.Go(func() { body(thread, &over) })
	}
	time.Sleep(runFor)
	over.Store(true)
	elapsed := now() - started
	ended.Wait()
	return elapsed
}

var held []func()

func hold(s subject, key string, count int) []int64 {
	if !s.renews {
		return []int64{0}
	}
	for i := range count {
		held = append(held, s.lock(fmt.Sprint(key, ":", i))())
	}
	return []int64{int64(count)}
}

func drop() {
	for _, unlock := range held {
		unlock()
	}
	held = nil
}
