package main

import (
	"slices"
	"testing"
)

func TestOwnCgroupsAreFoundInEachKindOfTree(t *testing.T) {
	for _, test := range []struct {
		name, mountinfo, cgroup string
		expected                []hierarchy
	}{
		{
			"v1, two controllers in one tree, beside a v2 without controllers",
			`30 25 0:26 / /sys/fs/cgroup/cpu,cpuacct rw,nosuid shared:9 - cgroup cgroup rw,cpu,cpuacct
31 25 0:27 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
32 25 0:28 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw`,
			"4:cpu,cpuacct:/user\n1:name=systemd:/\n0::/user\n",
			[]hierarchy{
				{"cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct", "/sys/fs/cgroup/cpu,cpuacct/user"},
				{"name=systemd", "/sys/fs/cgroup/systemd", "/sys/fs/cgroup/systemd"},
			},
		},
		{
			"v1 in a container that sees its own part only",
			"40 25 0:30 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory",
			"7:memory:/docker/abc/inner\n",
			[]hierarchy{{"memory", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory/inner"}},
		},
		{
			"v1 whose process is outside of what is mounted",
			"40 25 0:30 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory",
			"7:memory:/elsewhere\n",
			[]hierarchy{{"memory", "/sys/fs/cgroup/memory", "/sys/fs/cgroup/memory"}},
		},
		{
			"v2 beside systemd's tree of v1, which has no controller",
			`31 25 0:27 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
32 25 0:28 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw,nsdelegate`,
			"1:name=systemd:/\n0::/user.slice/session.scope\n",
			[]hierarchy{{"", "/sys/fs/cgroup", "/sys/fs/cgroup/user.slice/session.scope"}},
		},
	} {
		t.Run(test.name, func(t *testing.T) {
			found, err := hierarchies(test.mountinfo, test.cgroup)
			if err != nil || !slices.Equal(found, test.expected) {
				t.Fatalf("found %+v, %v; expected %+v", found, err, test.expected)
			}
		})
	}
	if found, err := hierarchies("", "0::/\n"); err == nil {
		t.Fatalf("found %+v where nothing is mounted, expected an error", found)
	}
}
