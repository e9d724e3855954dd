package main

import (
	"errors"
	"sync"
	"time"

	"github.com/firstlight-dev/firstlight/test/lab"
)

// meterInterval is how exactly bytes can be given a time: at 200 Mbit/s one
// interval carries a little over a megabyte.
const meterInterval = 50 * time.Millisecond

// meter samples a link's byte counter, because what counts is how many bytes a
// start needed until it was usable, and a lazy one goes on fetching afterwards.
type meter struct {
	quit chan struct{}
	done chan struct{}
	once sync.Once

	mu      sync.Mutex
	samples []sample
	err     error
}

type sample struct {
	at    time.Time
	bytes int64
}

func startMeter(link *lab.Link) *meter {
	m := &meter{quit: make(chan struct{}), done: make(chan struct{})}
	go m.run(link)
	return m
}

func (m *meter) run(link *lab.Link) {
	defer close(m.done)
	tick := time.NewTicker(meterInterval)
	defer tick.Stop()
	for {
		bytes, err := link.Received()
		m.mu.Lock()
		if err != nil {
			m.err = err
		} else {
			m.samples = append(m.samples, sample{time.Now(), bytes})
		}
		m.mu.Unlock()
		select {
		case <-m.quit:
			return
		case <-tick.C:
		}
	}
}

func (m *meter) stop() {
	m.once.Do(func() { close(m.quit) })
	<-m.done
}

// at returns how many bytes had come by t: the first sample not before it.
func (m *meter) at(t time.Time) (int64, error) {
	m.stop()
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.err != nil {
		return 0, m.err
	}
	if len(m.samples) == 0 {
		return 0, errors.New("the link's byte counter was never read")
	}
	first := m.samples[0].bytes
	for _, s := range m.samples {
		if !s.at.Before(t) {
			return s.bytes - first, nil
		}
	}
	return m.samples[len(m.samples)-1].bytes - first, nil
}
