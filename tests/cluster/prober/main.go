// Command prober is the program of pods of `endure` and `rigs`: some answer, others send probes and
// count the answers.
//
//	prober                   answers UDP and TCP at port 7000 with what came
//	prober serve PORT...     the same at these ports, such as 80/tcp
//	prober reach TARGET...   asks each target, such as 10.244.0.2:80/tcp, and prints those that answer, a line each
//	prober watch ADDRESS     asks one address every 10 ms, by UDP and by one TCP connection that stays
//	prober sweep PREFIX... [services PREFIX...]
//	                         asks every address of the networks for ever, by UDP and by new TCP connections; where the
//	                         addresses are services', a refusal is no answer, because one without pods refuses
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
	"strings"
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
		err = answer(fmt.Sprint(echoPort, "/tcp"), fmt.Sprint(echoPort, "/udp"))
	case command == "serve":
		err = answer(arguments...)
	case command == "reach":
		reach(arguments)
		return
	case command == "watch" && len(arguments) == 1:
		err = serve(startWatch(arguments[0]))
	case command == "sweep" && len(arguments) > 0:
		var targets []target
		areServices := false
		for _, prefix := range arguments {
			if prefix == "services" {
				areServices = true
				continue
			}
			for _, address := range podAddresses(netip.MustParsePrefix(prefix)) {
				targets = append(targets, target{address, areServices})
			}
		}
		err = serve(startSweep(targets))
	default:
		err = fmt.Errorf("found the arguments %q, expected none, `serve PORT...`, `reach TARGET...`, `watch ADDRESS` or `sweep PREFIX... [services PREFIX...]`", os.Args[1:])
	}
	log.Fatal(err)
}

// serve writes a report for each request.
func serve(report func() string) error {
	return http.ListenAndServe(fmt.Sprint(":", reportPort), http.HandlerFunc(
		func(w http.ResponseWriter, _ *http.Request) { fmt.Fprint(w, report()) }))
}

// answer echoes at the ports, for ever. If it cannot send an answer, the other side counts a loss.
func answer(ports ...string) error {
	ended := make(chan error)
	for _, port := range ports {
		number, protocol, _ := strings.Cut(port, "/")
		go func() {
			if protocol == "udp" {
				ended <- answerPackets(":" + number)
			} else {
				ended <- answerConnections(":" + number)
			}
		}()
	}
	return <-ended
}

func answerPackets(address string) error {
	socket, err := net.ListenPacket("udp", address)
	if err != nil {
		return err
	}
	for message := make([]byte, 1500); ; {
		if n, from, err := socket.ReadFrom(message); err == nil {
			_, _ = socket.WriteTo(message[:n], from)
		}
	}
}

func answerConnections(address string) error {
	listener, err := net.Listen("tcp", address)
	if err != nil {
		return err
	}
	for {
		connection, err := listener.Accept()
		if err != nil {
			return err
		}
		go func() {
			_, _ = io.Copy(connection, connection)
			connection.Close()
		}()
	}
}
