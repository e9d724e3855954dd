package deviceplugin

import (
	"context"
	"encoding/json"
	"fmt"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/firstlight-dev/firstlight/sharing/wire"
)

// annotate makes the node's annotations say what the cards are. It compares
// with the live node, so an annotation that somebody removed comes back.
func (p *Plugin) annotate(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTime)
	defer cancel()
	encode := wire.EncodeDevices
	if p.cfg.Legacy {
		encode = wire.EncodeDevicesLegacy
	}
	text, err := encode(p.Cards())
	if err != nil {
		return err
	}
	node, err := p.cfg.Client.CoreV1().Nodes().Get(ctx, p.cfg.Node, metav1.GetOptions{})
	if err != nil {
		return fmt.Errorf("read node %s: %w", p.cfg.Node, err)
	}
	notes := map[string]string{}
	if node.Annotations[wire.NodeRegister] != text {
		notes[wire.NodeRegister] = text
	}
	if p.mustReport(node.Annotations[wire.NodeHandshake]) {
		notes[wire.NodeHandshake] = wire.Handshake{State: wire.HandshakeReported, At: p.cfg.Now()}.String()
	}
	if len(notes) == 0 {
		return nil
	}
	body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": notes}})
	if err != nil {
		return err
	}
	if _, err := p.cfg.Client.CoreV1().Nodes().Patch(ctx, p.cfg.Node, types.MergePatchType, body, metav1.PatchOptions{}); err != nil {
		return fmt.Errorf("annotate node %s: %w", p.cfg.Node, err)
	}
	p.cfg.Log.InfoContext(ctx, "node annotated", "node", p.cfg.Node, "cards", len(p.Cards()))
	return nil
}

// mustReport reports whether the handshake waits for an answer. HAMi 2.8 and
// later go by the kubelet's device count instead, so there an answer is needed
// only to replace what an older scheduler left.
func (p *Plugin) mustReport(text string) bool {
	h, err := wire.ParseHandshake(text, p.cfg.Now().Location())
	if err != nil {
		return true
	}
	return h.State == wire.HandshakeDeleted || h.State == wire.HandshakeRequesting && p.cfg.Legacy
}
