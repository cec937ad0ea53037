package main

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// mount makes the machine's files look like those of the node's own machine, with everything at its
// usual path. Writes go to the node's disk.
func (n node) mount() error {
	disk := n.path("disks", n.name)
	// None of these mounts reaches the machine. Inside the node mounts propagate, as kubelet and runc
	// require.
	if err := mountAll(
		mounting{"", "/", "", unix.MS_REC | unix.MS_PRIVATE, ""},
		mounting{"", "/", "", unix.MS_REC | unix.MS_SHARED, ""},
		mounting{"proc", "/proc", "proc", 0, ""},
		mounting{"sysfs", "/sys", "sysfs", 0, ""},
	); err != nil {
		return err
	}
	// The folders that the cluster needs may lie below a path that is mounted over.
	cache := filepath.Dir(n.Bin)
	pins, err := pin(n.Dir, cache, disk)
	if err != nil {
		return err
	}
	for _, name := range []string{"etc", "opt", "var"} {
		upper, work := filepath.Join(disk, name), filepath.Join(disk, name+".work")
		if err := errors.Join(os.MkdirAll(upper, 0o755), os.MkdirAll(work, 0o755), os.MkdirAll("/"+name, 0o755)); err != nil {
			return err
		}
		options := fmt.Sprintf("lowerdir=/%s,upperdir=%s,workdir=%s", name, upper, work)
		if err := mountAll(mounting{"overlay", "/" + name, "overlay", 0, options}); err != nil {
			return err
		}
	}
	if err := mountAll(mounting{"run", "/run", "tmpfs", 0, "mode=755"}); err != nil {
		return err
	}
	if err := pins.restore(); err != nil {
		return err
	}
	// containerd's own overlays cannot be made on an overlay.
	binds := map[string]string{
		"/etc/cni/net.d": n.path(n.name, "cni-conf"),
		"/opt/cni/bin":   n.path(n.name, "cni-bin"),
	}
	for _, folder := range []string{"/var/lib/containerd", "/var/lib/kubelet", "/var/lib/cni", "/var/log/pods", "/var/log/containers"} {
		binds[folder] = filepath.Join(disk, "plain", folder)
	}
	for target, source := range binds {
		if err := bind(source, target); err != nil {
			return err
		}
	}
	for _, folder := range []string{"/etc/kubernetes", "/run/lock", "/run/netns"} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	// Some network plugins use it; not every kernel and container has it.
	_ = unix.Mount("bpf", "/sys/fs/bpf", "bpf", 0, "")
	if err := mountCgroups(); err != nil {
		return err
	}
	return n.coverSettings()
}

type mounting struct {
	source, target, kind string
	flags                uintptr
	options              string
}

func mountAll(mountings ...mounting) error {
	for _, m := range mountings {
		if err := unix.Mount(m.source, m.target, m.kind, m.flags, m.options); err != nil {
			return fmt.Errorf("mounting %s %s on %s (%s): %w", m.kind, m.source, m.target, m.options, err)
		}
	}
	return nil
}

func bind(source, target string) error {
	if err := errors.Join(os.MkdirAll(source, 0o755), os.MkdirAll(target, 0o755)); err != nil {
		return err
	}
	return mountAll(mounting{source, target, "", unix.MS_BIND | unix.MS_REC, ""})
}

// pinned are open folders, by path.
type pinned map[string]*os.File

func pin(paths ...string) (pinned, error) {
	pins := pinned{}
	for _, path := range paths {
		if err := os.MkdirAll(path, 0o755); err != nil {
			return nil, err
		}
		folder, err := os.Open(path)
		if err != nil {
			return nil, err
		}
		pins[path] = folder
	}
	return pins, nil
}

// restore mounts each folder at its path again if something else is mounted there by now.
func (p pinned) restore() error {
	for path, folder := range p {
		defer folder.Close()
		if err := bind(fmt.Sprintf("/proc/self/fd/%d", folder.Fd()), path); err != nil {
			return err
		}
	}
	return nil
}

// mountCgroups shows the node's own cgroups as the roots of their trees.
func mountCgroups() error {
	trees, err := ownHierarchies()
	if err != nil {
		return err
	}
	if trees[0].isV2() {
		return mountAll(mounting{"cgroup", "/sys/fs/cgroup", "cgroup2", 0, ""})
	}
	if err := mountAll(mounting{"cgroups", "/sys/fs/cgroup", "tmpfs", 0, "mode=755"}); err != nil {
		return err
	}
	for _, h := range trees {
		name := strings.TrimPrefix(h.controllers, "name=")
		folder := filepath.Join("/sys/fs/cgroup", name)
		if err := os.Mkdir(folder, 0o755); err != nil {
			return err
		}
		options := h.controllers
		if strings.HasPrefix(options, "name=") {
			options = "none," + options
		}
		if err := mountAll(mounting{"cgroup", folder, "cgroup", 0, options}); err != nil {
			return err
		}
		for _, controller := range strings.Split(name, ",") {
			if controller != name {
				if err := os.Symlink(name, filepath.Join("/sys/fs/cgroup", controller)); err != nil {
					return err
				}
			}
		}
	}
	return nil
}

// coverSettings mounts files over settings that belong to the whole machine but that kubelet
// insists on. kubelet finds the values that it wants, and the machine keeps its own.
func (n node) coverSettings() error {
	for setting, value := range map[string]string{
		"vm/overcommit_memory":      "1",
		"vm/panic_on_oom":           "0",
		"kernel/panic":              "10",
		"kernel/panic_on_oops":      "1",
		"kernel/keys/root_maxkeys":  "1000000",
		"kernel/keys/root_maxbytes": "25000000",
	} {
		path, cover := filepath.Join("/proc/sys", setting), n.path("disks", n.name, filepath.Base(setting))
		if _, err := os.Stat(path); errors.Is(err, os.ErrNotExist) {
			continue
		}
		if err := os.WriteFile(cover, []byte(value+"\n"), 0o644); err != nil {
			return err
		}
		if err := mountAll(mounting{cover, path, "", unix.MS_BIND, ""}); err != nil {
			return err
		}
	}
	return nil
}
