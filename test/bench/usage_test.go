package main

import "testing"

func TestParseProcess(t *testing.T) {
	stat := "7 (a (b) c) S 1 7 7 0 -1 4194560 1 2 3 4 150 50 20 30 20 0 9 0 100 1 1"
	status := "Name:\ta\nVmHWM:\t    2048 kB\nVmRSS:\t 1 kB\n"
	got, err := parseProcess([]byte(stat), []byte(status))
	if err != nil {
		t.Fatal(err)
	}
	if want := (process{name: "a (b) c", cpu: 2.5, peakRSS: 2 << 20}); got != want {
		t.Errorf("the process is %+v, want %+v", got, want)
	}
	for name, stat := range map[string]string{"no name": "7 a S", "short": "7 (a) S 1 2", "no number": "7 (a) S 1 7 7 0 -1 4194560 1 2 3 4 x 50 20 30"} {
		if _, err := parseProcess([]byte(stat), nil); err == nil {
			t.Errorf("%s: there is no error", name)
		}
	}
}

func TestUsageByName(t *testing.T) {
	ps := processes{{"containerd", 1, 10}, {"containerd-shim", 2, 20}, {"firstlight-snap", 4, 40}}
	if cpu, rss := ps.cpu("containerd"), ps.peakRSS("firstlight-"); cpu != 3 || rss != 40 {
		t.Errorf("containerd used %v s and firstlight %d bytes", cpu, rss)
	}
}

func TestArmsNamed(t *testing.T) {
	if got, err := armsNamed([]string{"overlayfs", "soci"}); err != nil || len(got) != 2 || got[0].name != "overlayfs" {
		t.Errorf("the arms are %+v (%v)", got, err)
	}
	if _, err := armsNamed([]string{"magic"}); err == nil {
		t.Error("an unknown arm is no error")
	}
}
