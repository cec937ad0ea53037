package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

func TestTwoAPIServersAtATimeDoNotMeet(t *testing.T) {
	a, b := newCluster(t), newCluster(t)
	for _, c := range []testCluster{a, b} {
		if got, expected := c.run("up", "--nodes", "0"), filepath.Join(c.dir, "kubeconfig"); got != expected {
			t.Fatalf("`up` printed %q, expected %q", got, expected)
		}
	}
	a.run("kubectl", "create", "namespace", "only-in-a")
	a.run("kubectl", "get", "namespace", "only-in-a")
	if _, err := b.try("kubectl", "get", "namespace", "only-in-a"); err == nil || !strings.Contains(err.Error(), "NotFound") {
		t.Fatalf("a namespace of one cluster, asked for in the other: %v, expected NotFound", err)
	}
	// A pod needs no service account here: no controller would make one.
	a.run("kubectl", "run", "pod", "--image=none")
}

func TestAStoppedProgramStaysSoUntilItIsStarted(t *testing.T) {
	c := newCluster(t)
	c.run("up", "--nodes", "0")
	c.run("kubectl", "create", "namespace", "kept")
	c.run("stop", "kube-apiserver")
	time.Sleep(2 * time.Second) // longer than a program that ended by itself stays down
	if _, err := c.try("kubectl", "get", "--raw=/api/v1/namespaces/kept", "--request-timeout=2s"); err == nil {
		t.Fatal("the stopped API server answers")
	}
	if status := c.run("status"); !strings.Contains(status, "kube-apiserver           stopped") {
		t.Fatalf("the status does not say that the API server is stopped:\n%s", status)
	}
	c.run("start", "kube-apiserver")
	c.eventually(30*time.Second, "kubectl", "get", "namespace", "kept")
}

func TestNothingRunsOnWhenUpIsKilled(t *testing.T) {
	c := newCluster(t)
	up := c.command("up", "--nodes", "0")
	if err := up.Start(); err != nil {
		t.Fatal(err)
	}
	pid := filepath.Join(c.dir, "pid")
	var machine Process
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(5 * time.Millisecond) {
		var err error
		if machine, err = readProcess(pid); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("no machine after 20 s: %v", err)
		}
	}
	if err := up.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = up.Wait() // "signal: killed"
	for end := time.Now().Add(10 * time.Second); machine.alive(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the machine still runs 10 s after `up` was killed")
		}
	}
	if _, err := c.try("up", "--nodes", "0"); err == nil || !strings.Contains(err.Error(), "cluster down --dir") {
		t.Fatalf("`up` in the folder that the crash left: %v, expected a word on `cluster down`", err)
	}
}

func TestAFolderOfSomethingElseIsLeftAlone(t *testing.T) {
	dir := t.TempDir()
	file := filepath.Join(dir, "mine")
	if err := os.WriteFile(file, []byte("text"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := testCluster{t, dir}
	for _, command := range []string{"up", "down"} {
		if _, err := c.try(command); err == nil || !strings.Contains(err.Error(), dir) {
			t.Errorf("`%s` in a folder of something else: %v, expected a refusal that names it", command, err)
		}
	}
	if text, err := os.ReadFile(file); string(text) != "text" {
		t.Errorf("the file in that folder: %q, %v", text, err)
	}
}
