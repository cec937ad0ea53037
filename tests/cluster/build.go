package main

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// A target is one program to build. The programs of an image are also packed.
type target struct {
	name, pkg string
	// module is the folder of its Go module, if it has its own: its dependencies may have other
	// versions.
	module string
	test   bool // a test binary
	asked  bool // built only when it is named
}

var targets = []target{
	{name: "k8s", pkg: "./k8s"},
	{name: "agnhost", pkg: "k8s.io/kubernetes/test/images/agnhost"},
	{name: "pause", pkg: "./pause"},
	{name: "regression-issue-74839", pkg: "k8s.io/kubernetes/test/images/regression-issue-74839"},
	{name: "coredns", module: "dns", pkg: "."},
	{name: "specs.test", pkg: "./specs", test: true, asked: true}, // ginkgo accepts no other suffix
	{name: "ginkgo", pkg: "github.com/onsi/ginkgo/v2/ginkgo", asked: true},
}

// build makes the programs in the cache folder that are out of date. Only one build runs there at a
// time; another waits.
func build(names []string) error {
	project, err := root()
	if err != nil {
		return err
	}
	cache, err := cache()
	if err != nil {
		return err
	}
	if _, err := exec.LookPath("go"); err != nil {
		return errors.New("go is missing: install the version that tests/cluster/go.mod names, or a newer one, from https://go.dev/dl")
	}
	for _, name := range names {
		if !slices.ContainsFunc(targets, func(t target) bool { return t.name == name }) {
			return fmt.Errorf("%q is not built here, expected any of:%s", name, targetNames())
		}
	}
	for _, folder := range []string{"bin", "images"} {
		if err := os.MkdirAll(filepath.Join(cache, folder), 0o755); err != nil {
			return err
		}
	}
	unlock, err := lock(filepath.Join(cache, "lock"))
	if err != nil {
		return err
	}
	defer unlock()
	b := builder{filepath.Join(project, "tests/cluster"), cache}
	for _, t := range targets {
		if slices.Contains(names, t.name) || len(names) == 0 && !t.asked {
			if err := b.build(t); err != nil {
				return err
			}
		}
	}
	return nil
}

func targetNames() (names string) {
	for _, t := range targets {
		names += " " + t.name
	}
	return names
}

// lock waits until no other process has locked the file. The lock ends when this process ends, in
// any way.
func lock(path string) (unlock func(), err error) {
	file, err := os.OpenFile(path, os.O_CREATE|os.O_RDWR, 0o644)
	if err != nil {
		return nil, err
	}
	return func() { file.Close() }, unix.Flock(int(file.Fd()), unix.LOCK_EX)
}

type builder struct{ source, cache string }

// build does nothing if the stamp beside the program shows the same sources, because linking alone
// takes most of a minute.
func (b builder) build(t target) error {
	stamp, err := b.stamp()
	if err != nil {
		return err
	}
	program := filepath.Join(b.cache, "bin", t.name)
	if text, err := os.ReadFile(program + ".stamp"); err == nil && string(text) == stamp && executable(program) {
		return nil
	}
	begin := time.Now()
	version, err := b.goOutput("list", "-m", "-f", "{{.Version}}", "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	parts := strings.Split(strings.TrimPrefix(version, "v"), ".")
	const v = "k8s.io/component-base/version"
	link := fmt.Sprintf("-s -w -X %s.gitVersion=%s -X %s.gitMajor=%s -X %s.gitMinor=%s -X %s.gitTreeState=clean",
		v, version, v, parts[0], v, parts[1], v)
	arguments := []string{"build"}
	if t.test {
		arguments = []string{"test", "-c"}
	}
	b.source = filepath.Join(b.source, t.module)
	compile := b.command(append(arguments, "-trimpath", "-buildvcs=false", "-ldflags", link, "-o", program+".new", t.pkg)...)
	compile.Stdout, compile.Stderr = os.Stderr, os.Stderr
	if err := compile.Run(); err != nil {
		return fmt.Errorf("go build %s: %w", t.pkg, err)
	}
	// A running program keeps the file that it was started from.
	if err := os.Rename(program+".new", program); err != nil {
		return err
	}
	for _, image := range images {
		if image.program == t.name {
			if image.files, err = b.imageFiles(image); err != nil {
				return err
			}
			if err := image.pack(image.archive(b.cache), program); err != nil {
				return err
			}
		}
	}
	fmt.Fprintf(os.Stderr, "%s built in %.0f s\n", t.name, time.Since(begin).Seconds())
	return writeFile(program+".stamp", stamp)
}

// imageFiles returns the files of an image, including those from Kubernetes' module.
func (b builder) imageFiles(i image) (map[string]string, error) {
	if len(i.module) == 0 {
		return i.files, nil
	}
	module, err := b.goOutput("list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes")
	if err != nil {
		return nil, err
	}
	files := maps.Clone(i.files)
	for path, from := range i.module {
		text, err := os.ReadFile(filepath.Join(module, from))
		if err != nil {
			return nil, fmt.Errorf("a file of the image %s: %w", i.program, err)
		}
		files[path] = string(text)
	}
	return files, nil
}

// stamp returns a digest of everything that is compiled: Go's version, the versions of the modules,
// and the sources here.
func (b builder) stamp() (string, error) {
	version, err := b.goOutput("env", "GOVERSION", "GOARCH")
	if err != nil {
		return "", err
	}
	digest := sha256.New()
	fmt.Fprintln(digest, version)
	err = filepath.WalkDir(b.source, func(path string, entry fs.DirEntry, err error) error {
		name := entry.Name()
		if err != nil || entry.IsDir() || !strings.HasSuffix(name, ".go") && name != "go.mod" && name != "go.sum" {
			return err
		}
		// The caller compiles the driver itself. Only these two files affect the programs that are built
		// here.
		if filepath.Dir(path) == b.source && strings.HasSuffix(name, ".go") && name != "image.go" && name != "tools.go" {
			return nil
		}
		text, err := os.ReadFile(path)
		fmt.Fprintln(digest, path, len(text))
		digest.Write(text)
		return err
	})
	return fmt.Sprintf("%x\n", digest.Sum(nil)), err
}

func (b builder) command(arguments ...string) *exec.Cmd {
	command := exec.Command("go", arguments...)
	command.Dir = b.source
	command.Env = append(os.Environ(), "CGO_ENABLED=0")
	return command
}

func (b builder) goOutput(arguments ...string) (string, error) {
	command := b.command(arguments...)
	command.Stderr = os.Stderr
	out, err := command.Output()
	if err != nil {
		return "", fmt.Errorf("go %s: %w", strings.Join(arguments, " "), err)
	}
	return strings.TrimSpace(string(out)), nil
}
