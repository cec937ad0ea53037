package main

import (
	"regexp"
	"slices"
	"strings"
	"testing"
)

const listed = `The following spec names can be used with 'ginkgo run --focus/skip':
    k8s.io/e2e/network/netpol/network_policy.go:1: [sig-network] Netpol should support allow-all policy [Feature:NetworkPolicy]
    k8s.io/e2e/network/netpol/network_policy.go:2: [sig-network] Netpol should deny from pods: all [Feature:NetworkPolicy]
    k8s.io/e2e/network/netpol/network_policy.go:3: [sig-network] Netpol should deny SCTP [Feature:SCTPConnectivity]
    k8s.io/e2e/network/service.go:4: [sig-network] Services should have backends: two
    k8s.io/e2e/common/network/networking.go:5: [sig-network] Networking should reach pods
    k8s.io/e2e/apps/job.go:6: [sig-apps] Job should end

`

func TestEachSuiteHasTheSpecsOfItsFiles(t *testing.T) {
	for _, it := range []struct {
		command string
		names   []string
	}{
		{"netpol", []string{"allow-all", "pods: all", "SCTP"}},
		{"network", []string{"backends: two", "reach pods"}},
	} {
		found := namesIn(listed, regexp.MustCompile(suiteOf(t, it.command).files))
		if len(found) != len(it.names) || !slices.EqualFunc(found, it.names, strings.Contains) {
			t.Errorf("%s: expected specs with %q, found %q", it.command, it.names, found)
		}
	}
}

func TestEveryPartOfAFocusMatchesASpec(t *testing.T) {
	netpol := suiteOf(t, "netpol")
	names := namesIn(listed, regexp.MustCompile(netpol.files))
	for _, it := range []struct{ focus, skip, wrong string }{
		{"allow-all|from pods: all", netpol.skip(), ""},
		{"sig-network", netpol.skip(), ""},
		{"allow-all|deny SCTP", "", ""},
		{"allow-all|deny SCTP", netpol.skip(), `no spec matches "deny SCTP", a part of the focus, among 2`},
		{"allow-all|no such", "", `no spec matches "no such", a part of the focus, among 3`},
		{"allow-all|network_policy.go", "", `no spec matches "network_policy.go"`},
		{"allow-all|backends", "", `no spec matches "backends"`},
		{"allow-all|(deny|from)", "", "missing closing )"},
	} {
		err := everyPartMatches(names, it.focus, it.skip)
		if it.wrong == "" && err != nil || it.wrong != "" && (err == nil || !strings.Contains(err.Error(), it.wrong)) {
			t.Errorf("focus %q without %q: expected %q, found %v", it.focus, it.skip, it.wrong, err)
		}
	}
}

func TestWhatRunsAloneIsToldApart(t *testing.T) {
	const bug = "[sig-network] Conntrack should not be vulnerable to the invalid conntrack state bug"
	const other = "[sig-network] Services should have backends: two"
	const port = "[sig-network] Networking Granular Checks: Services should update nodePort: udp [Slow]"
	for _, it := range []struct {
		command, focus, skip string
		together             bool
		alone                []string
	}{
		{"network", "sig-network", "", true, []string{bug, port}},
		{"network", "Conntrack", "", false, []string{bug}},
		{"network", "Services should have", "", true, nil},
		{"network", "sig-network", "Conntrack", true, []string{port}},
		{"netpol", "sig-network", "", true, nil},
	} {
		together, alone, err := suiteOf(t, it.command).split([]string{bug, other, port}, it.focus, it.skip)
		quoted := func(name, pattern string) bool { return regexp.QuoteMeta(name) == pattern }
		if err != nil || together != it.together || !slices.EqualFunc(it.alone, alone, quoted) {
			t.Errorf("%s: focus %q without %q: expected %v and %v, found %v, %v, %v", it.command, it.focus, it.skip, it.together, it.alone, together, alone, err)
		}
	}
}

func suiteOf(t *testing.T, command string) suite {
	t.Helper()
	at := slices.IndexFunc(suites, func(s suite) bool { return s.command == command })
	if at < 0 {
		t.Fatalf("no suite %q", command)
	}
	return suites[at]
}
