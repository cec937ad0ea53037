package main

import (
	"fmt"
	"net"
	"strings"
	"sync"
	"time"
)

// reach prints the targets that answer within a second. It probes all at the same time, by UDP
// three times.
func reach(targets []string) {
	var all sync.WaitGroup
	for _, target := range targets {
		all.Go(func() {
			if answers(target) {
				fmt.Println(target)
			}
		})
	}
	all.Wait()
}

func answers(target string) bool {
	address, protocol, _ := strings.Cut(target, "/")
	connection, err := net.DialTimeout(protocol, address, time.Second)
	if err != nil {
		return false
	}
	defer connection.Close()
	for range 3 {
		_ = connection.SetDeadline(time.Now().Add(time.Second / 3))
		if _, err := connection.Write([]byte("reach")); err != nil {
			continue
		}
		if _, err := connection.Read(make([]byte, 16)); err == nil {
			return true
		}
	}
	return false
}
