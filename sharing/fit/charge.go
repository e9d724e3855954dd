package fit

// taken is an amount of one card.
type taken struct{ mem, cores, slots int }

func (t taken) plus(o taken) taken {
	return taken{t.mem + o.mem, t.cores + o.cores, t.slots + o.slots}
}

func (t taken) max(o taken) taken {
	return taken{max(t.mem, o.mem), max(t.cores, o.cores), max(t.slots, o.slots)}
}

// moments follows a pod through its life, per card.
type moments struct {
	sidecars []taken // restartable init containers so far
	apps     []taken // app containers so far
	peak     []taken // the fullest init moment so far
}

func newMoments(cards int) moments {
	return moments{make([]taken, cards), make([]taken, cards), make([]taken, cards)}
}

// beside is what the pod's other containers hold of card c while a container of
// the role runs. A sidecar lives on beside the app containers, so it counts
// those placed so far as well: normally none, but the order is the caller's.
func (m *moments) beside(role Role, c int) taken {
	if role == Init {
		return m.sidecars[c]
	}
	return m.sidecars[c].plus(m.apps[c])
}

func (m *moments) add(role Role, c int, t taken) {
	switch role {
	case Init:
		m.peak[c] = m.peak[c].max(m.sidecars[c].plus(t))
	case Sidecar:
		m.sidecars[c] = m.sidecars[c].plus(t)
	case App:
		m.apps[c] = m.apps[c].plus(t)
	}
}

// Charge is what a pod takes of one card.
type Charge struct {
	UUID   string
	MemMiB int
	Cores  int
	Slots  int
}

// Charges sums an allocation up per card, in the order in which cards first
// appear. Containers beyond the end of roles count as App, which can only make
// the charge larger.
func Charges(a Allocation, roles []Role) []Charge {
	index := map[string]int{}
	var uuids []string
	for _, container := range a {
		for _, d := range container {
			if _, ok := index[d.Card()]; !ok {
				index[d.Card()] = len(uuids)
				uuids = append(uuids, d.Card())
			}
		}
	}
	m := newMoments(len(uuids))
	for i, container := range a {
		role := App
		if i < len(roles) {
			role = roles[i]
		}
		// All vGPUs of one container run at the same time, so an init
		// container that holds a card twice is summed before it counts.
		sum := make(map[int]taken, len(container))
		for _, d := range container {
			c := index[d.Card()]
			sum[c] = sum[c].plus(taken{d.MemMiB, d.Cores, 1})
		}
		for c, t := range sum {
			m.add(role, c, t)
		}
	}
	charges := make([]Charge, len(uuids))
	for c, uuid := range uuids {
		t := m.peak[c].max(m.sidecars[c].plus(m.apps[c]))
		charges[c] = Charge{UUID: uuid, MemMiB: t.mem, Cores: t.cores, Slots: t.slots}
	}
	return charges
}

// Take adds a charge to the card, or with sign -1 gives it back.
func (u *Usage) Take(c Charge, sign int) {
	u.UsedMemMiB += sign * c.MemMiB
	u.UsedCores += sign * c.Cores
	u.UsedSlots += sign * c.Slots
}
