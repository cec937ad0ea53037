// Command image writes an image of static programs, as `ctr images import` takes it:
//
//	image OUT NAME COMMAND PROGRAM...
//
// The programs stand in its root folder. COMMAND is what a container runs, its words apart by spaces; its arguments give
// way to those that a container has of its own.
package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

func main() {
	if len(os.Args) < 5 {
		fmt.Fprintln(os.Stderr, "usage: image OUT NAME COMMAND PROGRAM...")
		os.Exit(2)
	}
	if err := write(os.Args[1], os.Args[2], strings.Fields(os.Args[3]), os.Args[4:]); err != nil {
		fmt.Fprintln(os.Stderr, "image:", err)
		os.Exit(1)
	}
}

// archive makes a tar of files, each with its mode; one whose name ends in a slash is a folder.
type archive struct {
	buffer bytes.Buffer
	writer *tar.Writer
	err    error
}

func newArchive() *archive {
	a := &archive{}
	a.writer = tar.NewWriter(&a.buffer)
	return a
}

func (a *archive) add(name string, mode int64, content []byte) {
	header := &tar.Header{Name: name, Mode: mode, Size: int64(len(content)), Typeflag: tar.TypeReg}
	if strings.HasSuffix(name, "/") {
		header.Typeflag = tar.TypeDir
	}
	if a.err == nil {
		a.err = a.writer.WriteHeader(header)
	}
	if a.err == nil {
		_, a.err = a.writer.Write(content)
	}
}

func (a *archive) bytes() ([]byte, error) {
	if a.err == nil {
		a.err = a.writer.Close()
	}
	return a.buffer.Bytes(), a.err
}

// write writes the archive that `docker save` would: a layer, its configuration, and a manifest that names both.
func write(out, name string, command, programs []string) error {
	root := newArchive()
	for _, folder := range []string{"tmp/", "proc/", "sys/", "dev/", "etc/"} {
		root.add(folder, 0o755, nil)
	}
	for _, program := range programs {
		content, err := os.ReadFile(program)
		if err != nil {
			return err
		}
		root.add(filepath.Base(program), 0o755, content)
	}
	layer, err := root.bytes()
	if err != nil {
		return err
	}
	type object = map[string]any
	config, err := json.Marshal(object{
		"architecture": "amd64",
		"os":           "linux",
		"config":       object{"Entrypoint": command[:1], "Cmd": command[1:]},
		"rootfs":       object{"type": "layers", "diff_ids": []string{fmt.Sprintf("sha256:%x", sha256.Sum256(layer))}},
	})
	if err != nil {
		return err
	}
	manifest, err := json.Marshal([]object{{
		"Config": "config.json", "RepoTags": []string{name}, "Layers": []string{"layer.tar"},
	}})
	if err != nil {
		return err
	}
	image := newArchive()
	image.add("manifest.json", 0o644, manifest)
	image.add("config.json", 0o644, config)
	image.add("layer.tar", 0o644, layer)
	content, err := image.bytes()
	if err != nil {
		return err
	}
	return os.WriteFile(out, content, 0o644)
}
