package main

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	sweepPace = 4 * time.Millisecond // from one address to the next, by UDP
	dialers   = 16
	patience  = 250 * time.Millisecond // for a TCP connection
)

// podAddresses returns the addresses of a node's pod network, without the first one, which is the
// node's own.
func podAddresses(prefix netip.Prefix) (all []netip.Addr) {
	for a := prefix.Masked().Addr().Next().Next(); prefix.Contains(a.Next()); a = a.Next() {
		all = append(all, a)
	}
	return all
}

type target struct {
	address   netip.Addr
	isService bool
}

// counts are the counters of one target. A pod's refusal of a TCP connection counts as an answer,
// because it shows that the packet reached a pod.
type counts struct{ udpSent, udpHeard, tcpSent, tcpHeard atomic.Uint64 }

// startSweep returns a function that reports all counts since the start, with a line for each
// address: ADDRESS UDP-SENT UDP-ANSWERED TCP-SENT TCP-ANSWERED.
func startSweep(targets []target) func() string {
	found := map[netip.Addr]*counts{}
	for _, it := range targets {
		found[it.address] = &counts{}
	}
	own, err := net.InterfaceAddrs()
	if err != nil {
		panic(err)
	}
	for _, address := range own {
		delete(found, netip.MustParsePrefix(address.String()).Addr())
	}
	socket, err := net.ListenUDP("udp4", nil)
	if err != nil {
		panic(err)
	}
	next := make(chan target)
	go func() {
		for message := make([]byte, 1500); ; {
			if _, from, err := socket.ReadFromUDPAddrPort(message); err == nil && found[from.Addr()] != nil {
				found[from.Addr()].udpHeard.Add(1)
			}
		}
	}()
	go func() {
		for {
			for address, c := range found {
				if _, err := socket.WriteToUDPAddrPort([]byte("sweep"), netip.AddrPortFrom(address, echoPort)); err == nil {
					c.udpSent.Add(1)
				}
				time.Sleep(sweepPace)
			}
		}
	}()
	go func() {
		for {
			for _, it := range targets {
				if found[it.address] != nil {
					next <- it
				}
			}
		}
	}()
	for range dialers {
		go func() {
			for it := range next {
				dial(it, found[it.address])
			}
		}()
	}
	return func() string {
		var report strings.Builder
		for _, it := range targets {
			if c := found[it.address]; c != nil {
				fmt.Fprintln(&report, it.address, c.udpSent.Load(), c.udpHeard.Load(), c.tcpSent.Load(), c.tcpHeard.Load())
			}
		}
		return report.String()
	}
}

func dial(it target, c *counts) {
	c.tcpSent.Add(1)
	connection, err := net.DialTimeout("tcp4", netip.AddrPortFrom(it.address, echoPort).String(), patience)
	if err == nil {
		connection.Close()
	}
	if err == nil || errors.Is(err, unix.ECONNREFUSED) && !it.isService {
		c.tcpHeard.Add(1)
	} else {
		time.Sleep(time.Millisecond) // without a route the connection fails at once
	}
}
