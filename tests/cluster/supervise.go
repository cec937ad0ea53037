package main

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const (
	stateRuns    = "runs"
	stateStopped = "stopped"
	stateEnded   = "ended"
)

// supervise keeps the program running, as systemd would: it is started again one second after it
// ended. While the file stopped/NAME exists, the program is killed and stays stopped. By these
// files `stop` and `start` reach into the namespaces.
func (c *Cluster) supervise(name string, command func() (*exec.Cmd, error)) {
	go func() {
		for {
			for c.isStopped(name) {
				c.setState(name, stateStopped)
				time.Sleep(100 * time.Millisecond)
			}
			if err := c.runOnce(name, command); err != nil && !c.isStopped(name) {
				c.setState(name, fmt.Sprintf("%s: %v", stateEnded, err))
				time.Sleep(time.Second)
			}
		}
	}()
}

// runOnce runs the program until it ends, and returns how it ended.
func (c *Cluster) runOnce(name string, command func() (*exec.Cmd, error)) error {
	log, err := os.OpenFile(c.path("log", name), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close()
	program, err := command()
	if err != nil {
		return err
	}
	if program.Process == nil {
		program.Stdout, program.Stderr = log, log
		if err := program.Start(); err != nil {
			return err
		}
	}
	c.setState(name, stateRuns)
	ended := make(chan error, 1)
	go func() { ended <- program.Wait() }()
	for {
		select {
		case err := <-ended:
			return errors.Join(errors.New("it is started again in a second"), err)
		case <-time.After(100 * time.Millisecond):
			if c.isStopped(name) {
				_ = program.Process.Kill() // it may have ended by itself
			}
		}
	}
}

func (c *Cluster) isStopped(name string) bool {
	_, err := os.Stat(c.path("stopped", name))
	return err == nil
}

func (c *Cluster) setState(name, state string) {
	if err := writeFile(c.path("state", name), strings.ReplaceAll(state, "\n", "; ")); err != nil {
		fmt.Fprintln(os.Stderr, err)
	}
}

func (c *Cluster) state(name string) string {
	text, err := os.ReadFile(c.path("state", name))
	if err != nil {
		return "not started"
	}
	return string(text)
}

// waitFor tries until there is no error. It gives up when the time is over, and at once if one of
// the programs ended.
func (c *Cluster) waitFor(limit time.Duration, what string, programs []string, try func() error) error {
	for end := time.Now().Add(limit); ; time.Sleep(100 * time.Millisecond) {
		err := try()
		if err == nil {
			return nil
		}
		for _, name := range programs {
			if state := c.state(name); strings.HasPrefix(state, stateEnded) {
				return fmt.Errorf("waited for %s, but %s %s; the end of its log:\n%s", what, name, state, c.lastLines(name))
			}
		}
		if time.Now().After(end) {
			return fmt.Errorf("waited %s for %s: %w", limit, what, err)
		}
	}
}

func (c *Cluster) lastLines(name string) string {
	text, err := os.ReadFile(c.path("log", name))
	if err != nil {
		return err.Error()
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}

func stop(arguments []string) error {
	c, name, err := openedProgram("stop", arguments)
	if err != nil {
		return err
	}
	if err := os.WriteFile(c.path("stopped", name), nil, 0o600); err != nil {
		return err
	}
	return c.waitFor(30*time.Second, name+" to stop", nil, c.expectState(name, stateStopped))
}

func start(arguments []string) error {
	c, name, err := openedProgram("start", arguments)
	if err != nil {
		return err
	}
	if err := os.Remove(c.path("stopped", name)); err != nil && !errors.Is(err, os.ErrNotExist) {
		return err
	}
	return c.waitFor(30*time.Second, name+" to start", nil, c.expectState(name, stateRuns))
}

func openedProgram(command string, arguments []string) (*Cluster, string, error) {
	c, rest, err := opened(command, arguments)
	if err != nil {
		return nil, "", err
	}
	if len(rest) != 1 || c.state(rest[0]) == "not started" {
		return nil, "", fmt.Errorf("%q: expected the name of one program, as `cluster status` prints it", rest)
	}
	return c, rest[0], nil
}

func (c *Cluster) expectState(name, state string) func() error {
	return func() error {
		if found := c.state(name); found != state {
			return fmt.Errorf("%s %s", name, found)
		}
		return nil
	}
}

func status(arguments []string) error {
	c, _, err := opened("status", arguments)
	if err != nil {
		return err
	}
	machine, err := readProcess(c.path("pid"))
	if err != nil || !machine.alive() {
		return fmt.Errorf("the cluster in %s does not run; `cluster down --dir %s` removes what it left", c.Dir, c.Dir)
	}
	fmt.Printf("kubeconfig %s\n", c.path("kubeconfig"))
	states, err := filepath.Glob(c.path("state", "*"))
	for _, path := range states {
		name := filepath.Base(path)
		fmt.Printf("%-24s %s\n", name, c.state(name))
	}
	return err
}
