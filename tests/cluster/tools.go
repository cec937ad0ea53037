package main

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
)

// Tools are the programs that Kubernetes' specs execute in pods beside agnhost itself, as in its
// published image: a shell with its utilities, curl, wget, dig, getent, and OpenBSD's nc. They come
// from this machine, with the libraries that they are linked to.

// tool is a program of this machine, the Debian package that contains it, and its path in pods.
type tool struct{ program, debian, path string }

var tools = []tool{
	{"busybox", "busybox-static", "bin/busybox"},
	// The shell of busybox would use its own nc, whatever PATH says.
	{"dash", "dash", "bin/sh"},
	{"curl", "curl", "usr/bin/curl"},
	// busybox-static's wget crashes if libraries of another glibc build are present: it is static, but
	// loads them to resolve names.
	{"wget", "wget", "usr/bin/wget"},
	{"dig", "bind9-dnsutils", "usr/bin/dig"},
	{"getent", "libc-bin", "usr/bin/getent"},
	{"nc.openbsd", "netcat-openbsd", "usr/bin/nc"},
}

// toolEntries are the files of all tools, and a link to busybox for each of its commands.
func toolEntries() ([]entry, error) {
	var missing []string
	files := map[string]string{}
	for _, tool := range tools {
		program, err := exec.LookPath(tool.program)
		if err != nil {
			missing = append(missing, tool.debian)
			continue
		}
		files[tool.path] = program
		libraries, err := librariesOf(program)
		if err != nil {
			return nil, err
		}
		for _, library := range libraries {
			files[strings.TrimPrefix(library, "/")] = library
		}
	}
	if len(missing) > 0 {
		return nil, fmt.Errorf("programs that pods are to have are missing: apt-get install %s", strings.Join(missing, " "))
	}
	var entries []entry
	for path, from := range files {
		text, err := os.ReadFile(from)
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry{path: path, mode: 0o755, text: text})
	}
	commands, err := exec.Command("busybox", "--list").Output()
	if err != nil {
		return nil, fmt.Errorf("busybox --list: %w", err)
	}
	for _, command := range strings.Fields(string(commands)) {
		// If two programs have one name, the one that is no part of busybox is used.
		isTool := func(tool tool) bool { return filepath.Base(tool.path) == command }
		if !slices.ContainsFunc(tools, isTool) {
			entries = append(entries, entry{path: "bin/" + command, link: "busybox"})
		}
	}
	slices.SortFunc(entries, func(a, b entry) int { return strings.Compare(a.path, b.path) })
	return entries, nil
}

// librariesOf returns the libraries that a program is linked to, and their loader; none for a
// static program.
func librariesOf(program string) (paths []string, err error) {
	out, err := exec.Command("ldd", program).CombinedOutput()
	if strings.Contains(string(out), "not a dynamic executable") {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("ldd %s: %w: %s", program, err, out)
	}
	for line := range strings.Lines(string(out)) {
		for _, word := range strings.Fields(line) {
			if strings.HasPrefix(word, "/") {
				paths = append(paths, word)
			}
		}
	}
	return paths, nil
}
