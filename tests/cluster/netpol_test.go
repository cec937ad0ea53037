package main

import (
	"strings"
	"testing"
)

func TestEveryPartOfAFocusMatchesASpec(t *testing.T) {
	const names = `The following spec names can be used with 'ginkgo run --focus/skip':
    netpol/network_policy.go:1: [sig-network] Netpol should support allow-all policy [Feature:NetworkPolicy]
    netpol/network_policy.go:2: [sig-network] Netpol should deny from pods: all [Feature:NetworkPolicy]
    netpol/network_policy.go:3: [sig-network] Netpol should deny SCTP [Feature:SCTPConnectivity]

`
	for _, it := range []struct{ focus, skip, wrong string }{
		{"allow-all|from pods: all", leftOut, ""},
		{"NetworkPolicy", leftOut, ""},
		{"allow-all|deny SCTP", "", ""},
		{"allow-all|deny SCTP", leftOut, `no spec matches "deny SCTP", a part of the focus, among 2`},
		{"allow-all|no such", "", `no spec matches "no such", a part of the focus, among 3`},
		{"allow-all|network_policy.go", "", `no spec matches "network_policy.go"`},
		{"allow-all|(deny|from)", "", "missing closing )"},
	} {
		err := everyPartMatches(names, it.focus, it.skip)
		if it.wrong == "" && err != nil || it.wrong != "" && (err == nil || !strings.Contains(err.Error(), it.wrong)) {
			t.Errorf("focus %q without %q: expected %q, found %v", it.focus, it.skip, it.wrong, err)
		}
	}
}
