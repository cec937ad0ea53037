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

// podAddresses are those of a node's pod network: its first is the node's own.
func podAddresses(prefix netip.Prefix) (all []netip.Addr) {
	for a := prefix.Masked().Addr().Next().Next(); prefix.Contains(a.Next()); a = a.Next() {
		all = append(all, a)
	}
	return all
}

// counts of one address. An answer to a TCP connection is a refusal, too: it shows that the packet reached a pod.
type counts struct{ udpSent, udpHeard, tcpSent, tcpHeard atomic.Uint64 }

// startSweep gives the report of all that was counted since the start, a line for each address:
// ADDRESS UDP-SENT UDP-ANSWERED TCP-SENT TCP-ANSWERED.
func startSweep(addresses []netip.Addr) func() string {
	found := map[netip.Addr]*counts{}
	for _, address := range addresses {
		found[address] = &counts{}
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
	next := make(chan netip.Addr)
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
			for address := range found {
				next <- address
			}
		}
	}()
	for range dialers {
		go func() {
			for address := range next {
				dial(address, found[address])
			}
		}()
	}
	return func() string {
		var report strings.Builder
		for _, address := range addresses {
			if c := found[address]; c != nil {
				fmt.Fprintln(&report, address, c.udpSent.Load(), c.udpHeard.Load(), c.tcpSent.Load(), c.tcpHeard.Load())
			}
		}
		return report.String()
	}
}

func dial(address netip.Addr, c *counts) {
	c.tcpSent.Add(1)
	connection, err := net.DialTimeout("tcp4", netip.AddrPortFrom(address, echoPort).String(), patience)
	if err == nil {
		connection.Close()
	}
	if err == nil || errors.Is(err, unix.ECONNREFUSED) {
		c.tcpHeard.Add(1)
	} else {
		time.Sleep(time.Millisecond) // without a route it fails at once
	}
}
