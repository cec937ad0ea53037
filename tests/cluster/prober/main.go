// Command prober is what pods of `endure` run: some answer, some ask and count what they hear.
//
//	prober                 answers UDP and TCP at port 7000 with what came
//	prober watch ADDRESS   asks one address every 10 ms, by UDP and by one TCP connection that stays
//	prober sweep PREFIX... asks every address of the networks for ever, by UDP and by new TCP connections
//
// The last two report by HTTP at port 7001, so no API server is needed to read what they found.
package main

import (
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
)

const (
	echoPort   = 7000
	reportPort = 7001
)

func main() {
	command, arguments := "", os.Args[1:]
	if len(arguments) > 0 {
		command, arguments = arguments[0], arguments[1:]
	}
	var err error
	switch {
	case command == "":
		err = answer()
	case command == "watch" && len(arguments) == 1:
		err = serve(startWatch(arguments[0]))
	case command == "sweep" && len(arguments) > 0:
		var addresses []netip.Addr
		for _, prefix := range arguments {
			addresses = append(addresses, podAddresses(netip.MustParsePrefix(prefix))...)
		}
		err = serve(startSweep(addresses))
	default:
		err = fmt.Errorf("found the arguments %q, expected none, `watch ADDRESS` or `sweep PREFIX...`", os.Args[1:])
	}
	log.Fatal(err)
}

// serve writes a report for each request.
func serve(report func() string) error {
	return http.ListenAndServe(fmt.Sprint(":", reportPort), http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, report()) }))
}

// answer echoes. What it cannot send, the other side counts as lost.
func answer() error {
	packets, err := net.ListenUDP("udp", &net.UDPAddr{Port: echoPort})
	if err != nil {
		return err
	}
	go func() {
		for message := make([]byte, 1500); ; {
			if n, from, err := packets.ReadFromUDPAddrPort(message); err == nil {
				_, _ = packets.WriteToUDPAddrPort(message[:n], from)
			}
		}
	}()
	connections, err := net.Listen("tcp", fmt.Sprint(":", echoPort))
	if err != nil {
		return err
	}
	for {
		connection, err := connections.Accept()
		if err != nil {
			return err
		}
		go func() {
			_, _ = io.Copy(connection, connection)
			connection.Close()
		}()
	}
}
