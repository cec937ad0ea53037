package main

import (
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"sync"
	"time"
)

const (
	pace = 10 * time.Millisecond
	// late is the time that the last probes before a report have to be answered.
	late = 500 * time.Millisecond
)

// A window counts the probes since the last report. A probe is its number, as 8 bytes.
type window struct {
	sync.Mutex
	first, next uint64 // the numbers of the window's first probe and of the next probe to send
	answered    map[uint64]bool
	heard       time.Time     // when the last answer came
	gap         time.Duration // the longest time without an answer
}

func newWindow() *window { return &window{answered: map[uint64]bool{}, heard: time.Now()} }

func (w *window) probe() []byte {
	w.Lock()
	defer w.Unlock()
	w.next++
	return binary.BigEndian.AppendUint64(nil, w.next-1)
}

func (w *window) hear(probe []byte) {
	w.Lock()
	defer w.Unlock()
	w.extendGap()
	w.heard = time.Now()
	w.answered[binary.BigEndian.Uint64(probe)] = true
}

func (w *window) extendGap() { w.gap = max(w.gap, time.Since(w.heard)) }

// report ends the window. It returns the number of probes that were sent, the number without an
// answer, and the longest gap in milliseconds.
func (w *window) report() (sent, lost uint64, gap int64) {
	w.Lock()
	end := w.next
	w.Unlock()
	time.Sleep(late)
	w.Lock()
	defer w.Unlock()
	w.extendGap()
	sent, gap = end-w.first, w.gap.Milliseconds()
	for ; w.first < end; w.first++ {
		if !w.answered[w.first] {
			lost++
		}
		delete(w.answered, w.first)
	}
	w.gap = 0
	return sent, lost, gap
}

// startWatch returns a function that reports words of the form NAME=NUMBER. tcp_ends counts
// connections that ended or could not be made.
func startWatch(address string) func() string {
	target := net.JoinHostPort(address, fmt.Sprint(echoPort))
	udp, tcp := newWindow(), newWindow()
	var ends struct {
		sync.Mutex
		count int
	}
	go ask("udp", target, udp)
	go func() {
		for ; ; time.Sleep(pace) {
			ask("tcp", target, tcp)
			ends.Lock()
			ends.count++
			ends.Unlock()
		}
	}()
	return func() string {
		udpSent, udpLost, udpGap := udp.report()
		_, _, tcpGap := tcp.report()
		ends.Lock()
		defer ends.Unlock()
		defer func() { ends.count = 0 }()
		return fmt.Sprintf("sent=%d lost=%d gap=%d tcp_gap=%d tcp_ends=%d\n", udpSent, udpLost, udpGap, tcpGap, ends.count)
	}
}

// ask sends a probe every 10 ms, and returns when the connection ends. A UDP connection does not
// end: its errors are lost probes.
func ask(network, target string, w *window) {
	connection, err := net.Dial(network, target)
	if err != nil {
		return
	}
	defer connection.Close()
	go func() {
		for {
			_, err := connection.Write(w.probe())
			if err != nil && network == "tcp" {
				return
			}
			time.Sleep(pace)
		}
	}()
	for probe := make([]byte, 8); ; {
		_, err := io.ReadFull(connection, probe)
		switch {
		case err == nil:
			w.hear(probe)
		case network == "tcp":
			return
		}
	}
}
