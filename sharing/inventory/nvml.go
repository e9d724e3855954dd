//go:build cgo && linux

package inventory

import (
	"context"
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"

	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// driver lists cards through NVML.
type driver struct {
	lib     nvml.Interface
	scaling Scaling
}

// OpenNVML opens the driver's library. It stays open for the process's life.
func OpenNVML(scaling Scaling) (Source, error) {
	lib := nvml.New()
	if ret := lib.Init(); ret != nvml.SUCCESS {
		return nil, fmt.Errorf("%w: %s", ErrNoNVML, lib.ErrorString(ret))
	}
	return &driver{lib: lib, scaling: scaling}, nil
}

var (
	_ Source = (*driver)(nil)
	_ Meter  = (*driver)(nil)
)

// Cards implements Source.
func (d *driver) Cards(context.Context) ([]wire.Device, error) {
	count, ret := d.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("count cards: %s", d.lib.ErrorString(ret))
	}
	cards := make([]wire.Device, 0, count)
	for i := range count {
		handle, ret := d.lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			return nil, fmt.Errorf("open card %d: %s", i, d.lib.ErrorString(ret))
		}
		card, err := d.card(handle, i)
		if err != nil {
			return nil, fmt.Errorf("read card %d: %w", i, err)
		}
		cards = append(cards, card)
	}
	return cards, nil
}

// card reads one card. Without a UUID it can't be named, which is an error; all
// else it fails to say makes it unhealthy.
func (d *driver) card(handle nvml.Device, index int) (wire.Device, error) {
	uuid, ret := handle.GetUUID()
	if ret != nvml.SUCCESS {
		return wire.Device{}, fmt.Errorf("UUID: %s", d.lib.ErrorString(ret))
	}
	name, nameRet := handle.GetName()
	memory, memoryRet := handle.GetMemoryInfo()
	card := wire.Device{
		UUID: uuid, Index: index, Type: wire.ModelType(name), Mode: wire.ModeCore,
		Slots:   d.scaling.slots(),
		MemMiB:  scale(int(memory.Total>>20), d.scaling.Memory),
		Cores:   scale(100, d.scaling.Cores),
		Healthy: nameRet == nvml.SUCCESS && memoryRet == nvml.SUCCESS,
	}
	if mode, _, ret := handle.GetMigMode(); ret == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE {
		card.Mode = wire.ModeMIG
	}
	if node, ret := handle.GetNumaNodeId(); ret == nvml.SUCCESS {
		card.NUMA = node
	}
	return card, nil
}

// Loads implements Meter.
func (d *driver) Loads(context.Context) ([]Load, error) {
	count, ret := d.lib.DeviceGetCount()
	if ret != nvml.SUCCESS {
		return nil, fmt.Errorf("count cards: %s", d.lib.ErrorString(ret))
	}
	var loads []Load
	for i := range count {
		handle, ret := d.lib.DeviceGetHandleByIndex(i)
		if ret != nvml.SUCCESS {
			continue
		}
		uuid, uuidRet := handle.GetUUID()
		memory, memoryRet := handle.GetMemoryInfo()
		rates, ratesRet := handle.GetUtilizationRates()
		if uuidRet == nvml.SUCCESS && memoryRet == nvml.SUCCESS && ratesRet == nvml.SUCCESS {
			loads = append(loads, Load{UUID: uuid, UsedBytes: memory.Used, UtilizationRate: int(rates.Gpu)})
		}
	}
	return loads, nil
}

func (s Scaling) slots() int {
	if s.Slots <= 0 {
		return wire.DefaultSlots
	}
	return s.Slots
}

func scale(n int, by float64) int {
	if by <= 0 {
		return n
	}
	return int(float64(n) * by)
}
