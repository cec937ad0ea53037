package main

import (
	"archive/tar"
	"bytes"
	"crypto/sha256"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"runtime"
)

// An image consists of some programs and a few files. It becomes an OCI image layout in a tar
// archive that `ctr images import` reads:
// https://github.com/opencontainers/image-spec/blob/v1.1.0/image-layout.md
type image struct {
	program string   // the target from which it is made, and its name in the image
	names   []string // the names by which pods refer to it
	files   map[string]string
	module  map[string]string // files of Kubernetes' module, by their path in the image
	folders []string
	tools   bool // whether it has the tools of tools.go
	config  map[string]any
}

// entry is a file of a layer, or a link.
type entry struct {
	path string
	mode int64
	text []byte
	link string
}

const (
	// The names are those that the specs request; `netpol` and `network` check that.
	agnhostImage = "registry.k8s.io/e2e-test-images/agnhost:2.59"
	pauseImage   = "registry.k8s.io/pause:3.10.1"
	dnsImage     = "registry.k8s.io/coredns/coredns:v1.13.1"
)

var images = []image{
	{
		// From three more images the specs need only a shell, dig, and a program that stays.
		program: "agnhost", names: []string{
			agnhostImage,
			"registry.k8s.io/e2e-test-images/busybox:1.37.0-1",
			"registry.k8s.io/e2e-test-images/jessie-dnsutils:1.7",
			"registry.k8s.io/e2e-test-images/nginx:1.14-4",
		},
		files: map[string]string{
			"etc/passwd": "root:x:0:0:root:/:/bin/sh\n", "etc/group": "root:x:0:\n", "etc/nsswitch.conf": "hosts: files dns\n",
		},
		// It serves TLS with these.
		module: map[string]string{
			"localhost.crt": "test/images/agnhost/porter/localhost.crt", "localhost.key": "test/images/agnhost/porter/localhost.key",
		},
		folders: []string{"etc", "uploads", "tmp"}, tools: true,
		config: map[string]any{"Entrypoint": []string{"/agnhost"}, "Cmd": []string{"pause"}, "Env": []string{"PATH=/:/bin:/usr/bin"}},
	},
	{
		program: "coredns", names: []string{dnsImage},
		config: map[string]any{"Entrypoint": []string{"/coredns"}},
	},
	{
		program: "pause", names: []string{pauseImage},
		config: map[string]any{"Entrypoint": []string{"/pause"}, "User": "65535:65535"},
	},
	{
		program: "regression-issue-74839", names: []string{"registry.k8s.io/e2e-test-images/regression-issue-74839:1.4"},
		config: map[string]any{"Entrypoint": []string{"/regression-issue-74839"}},
	},
}

func (i image) archive(cache string) string {
	return filepath.Join(cache, "images", i.program+".tar")
}

// pack writes the archive. Each program has the name of its file.
func (i image) pack(archive string, programs ...string) error {
	layer, err := i.layer(programs)
	if err != nil {
		return err
	}
	file, err := os.Create(archive + ".new")
	if err != nil {
		return err
	}
	defer file.Close()
	out := tar.NewWriter(file)
	type object map[string]any
	// blob stores the text under its digest, and returns the descriptor by which others refer to it.
	blob := func(mediaType string, text []byte) (object, error) {
		digest := fmt.Sprintf("%x", sha256.Sum256(text))
		return object{"mediaType": mediaType, "digest": "sha256:" + digest, "size": len(text)},
			writeEntry(out, "blobs/sha256/"+digest, 0o644, text)
	}
	describe := func(mediaType string, value object) (object, error) {
		text, err := json.Marshal(value)
		if err != nil {
			return nil, err
		}
		return blob(mediaType, text)
	}
	const kind = "application/vnd.oci.image."
	layers, err := blob(kind+"layer.v1.tar", layer)
	if err != nil {
		return err
	}
	config, err := describe(kind+"config.v1+json", object{
		"architecture": runtime.GOARCH, "os": "linux", "config": i.config,
		// The layer is not compressed, so its digest is also the digest of its content.
		"rootfs": object{"type": "layers", "diff_ids": []any{layers["digest"]}},
	})
	if err != nil {
		return err
	}
	manifest, err := describe(kind+"manifest.v1+json", object{
		"schemaVersion": 2, "mediaType": kind + "manifest.v1+json", "config": config, "layers": []any{layers},
	})
	if err != nil {
		return err
	}
	var manifests []any
	for _, name := range i.names {
		named := maps.Clone(manifest)
		named["annotations"] = object{"io.containerd.image.name": name}
		manifests = append(manifests, named)
	}
	index, err := json.Marshal(object{"schemaVersion": 2, "manifests": manifests})
	if err != nil {
		return err
	}
	if err := writeEntry(out, "index.json", 0o644, index); err != nil {
		return err
	}
	if err := writeEntry(out, "oci-layout", 0o644, []byte(`{"imageLayoutVersion":"1.0.0"}`)); err != nil {
		return err
	}
	if err := out.Close(); err != nil {
		return err
	}
	return os.Rename(archive+".new", archive)
}

// layer returns the image's root folder as a tar archive.
func (i image) layer(programs []string) ([]byte, error) {
	var layer bytes.Buffer
	out := tar.NewWriter(&layer)
	for _, folder := range i.folders {
		if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: folder + "/", Mode: 0o1777}); err != nil {
			return nil, err
		}
	}
	var entries []entry
	for name, text := range i.files {
		entries = append(entries, entry{path: name, mode: 0o644, text: []byte(text)})
	}
	for _, program := range programs {
		text, err := os.ReadFile(program)
		if err != nil {
			return nil, err
		}
		entries = append(entries, entry{path: filepath.Base(program), mode: 0o755, text: text})
	}
	if i.tools {
		tools, err := toolEntries()
		if err != nil {
			return nil, err
		}
		entries = append(entries, tools...)
	}
	made := map[string]bool{".": true}
	for _, folder := range i.folders {
		made[folder] = true
	}
	for _, e := range entries {
		if err := writeParents(out, filepath.Dir(e.path), made); err != nil {
			return nil, err
		}
		if err := e.write(out); err != nil {
			return nil, err
		}
	}
	return layer.Bytes(), out.Close()
}

// writeParents writes a folder and its parents that do not exist yet. Otherwise the unpacking
// program would choose their modes.
func writeParents(out *tar.Writer, folder string, made map[string]bool) error {
	if made[folder] {
		return nil
	}
	made[folder] = true
	if err := writeParents(out, filepath.Dir(folder), made); err != nil {
		return err
	}
	return out.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: folder + "/", Mode: 0o755})
}

func (e entry) write(out *tar.Writer) error {
	if e.link != "" {
		return out.WriteHeader(&tar.Header{Typeflag: tar.TypeSymlink, Name: e.path, Linkname: e.link, Mode: 0o777})
	}
	return writeEntry(out, e.path, e.mode, e.text)
}

func writeEntry(out *tar.Writer, name string, mode int64, text []byte) error {
	if err := out.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: name, Mode: mode, Size: int64(len(text))}); err != nil {
		return err
	}
	_, err := io.Copy(out, bytes.NewReader(text))
	return err
}
