package zblock

// sequenceReader reads the sequences of a block: three states, each of which says
// what value its code stands for and how many bits lead to the next.
type sequenceReader struct {
	bits       bitReader
	tables     *[kinds]table
	ll, of, ml entry
}

// start reads the first states.
func (r *sequenceReader) start(in []byte, tables *[kinds]table) bool {
	if !r.bits.start(in) {
		return false
	}
	r.tables = tables
	r.ll = tables[litLen].entries[r.bits.take(tables[litLen].log)]
	r.of = tables[offset].entries[r.bits.take(tables[offset].log)]
	r.ml = tables[matchLen].entries[r.bits.take(tables[matchLen].log)]
	return true
}

// values reads the extra bits of the present states. They lie in this order from
// the end: offset, match length, literal length.
func (r *sequenceReader) values() (value uint32, ll, ml int) {
	of := uint64(0)
	if r.of.extra > 24 {
		// more than one read can give with the other two
		of = r.bits.take(r.of.extra)
		r.of.extra = 0
	}
	w := r.bits.take(r.of.extra + r.ml.extra + r.ll.extra)
	ll = int(r.ll.base) + int(w&(1<<r.ll.extra-1))
	w >>= r.ll.extra
	ml = int(r.ml.base) + int(w&(1<<r.ml.extra-1))
	w >>= r.ml.extra
	return r.of.base + uint32(of+w), ll, ml
}

// advance reads the next states: literal length, match length, offset.
func (r *sequenceReader) advance() {
	const mask = 1<<maxLog - 1
	w := r.bits.take(r.ll.bits + r.ml.bits + r.of.bits)
	of := uint64(r.of.next) + w&(1<<r.of.bits-1)
	w >>= r.of.bits
	ml := uint64(r.ml.next) + w&(1<<r.ml.bits-1)
	w >>= r.ml.bits
	ll := uint64(r.ll.next) + w
	r.ll = r.tables[litLen].entries[ll&mask]
	r.ml = r.tables[matchLen].entries[ml&mask]
	r.of = r.tables[offset].entries[of&mask]
}
