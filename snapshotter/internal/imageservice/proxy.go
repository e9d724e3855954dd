// Package imageservice stands between kubelet and containerd's image service,
// and learns from each pull with which credential its image may be read.
//
// # Why
//
// A pod's pull secrets, and what kubelet's credential providers return, reach
// containerd inside the pull request and nothing else: a snapshotter is not
// told. With lazy layers most reading comes after the pull. So kubelet's
// imageServiceEndpoint is pointed here; every call goes on to containerd as it
// came, and of PullImage the credential is remembered.
//
// # Invariants
//
// A credential is used for the repository it was pulled with and no other, at
// that repository's registry and no mirror. It is kept in memory that the keeper
// holds for its workers, never on disk, and never in a log or an error. Calls
// are passed on as bytes: what a later kubelet and containerd agree on goes
// through unharmed.
package imageservice

import (
	"context"
	"errors"
	"fmt"
	"io"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/encoding"
	"google.golang.org/grpc/mem"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	runtime "k8s.io/cri-api/pkg/apis/runtime/v1"
)

// maxMessage is the largest message that kubelet and containerd exchange.
const maxMessage = 16 << 20

// Proxy is the service.
type Proxy struct {
	conn grpc.ClientConnInterface
	ring *Ring
}

// NewProxy returns a proxy to containerd.
func NewProxy(containerd grpc.ClientConnInterface, ring *Ring) *Proxy {
	return &Proxy{conn: containerd, ring: ring}
}

// Server returns a server that has the proxy answer every call.
func (p *Proxy) Server() *grpc.Server {
	return grpc.NewServer(grpc.UnknownServiceHandler(p.pass), grpc.ForceServerCodecV2(raw{}),
		grpc.MaxRecvMsgSize(maxMessage), grpc.MaxSendMsgSize(maxMessage))
}

// pass hands one call on. Calls of this service have one request and one answer
// or a stream of them.
func (p *Proxy) pass(_ any, from grpc.ServerStream) error {
	method, ok := grpc.MethodFromServerStream(from)
	if !ok {
		return status.Error(codes.Internal, "call without a method")
	}
	var request mem.BufferSlice
	if err := from.RecvMsg(&request); err != nil {
		return err
	}
	defer request.Free()
	if method == runtime.ImageService_PullImage_FullMethodName {
		p.learn(request)
	}
	ctx, cancel := context.WithCancel(from.Context())
	defer cancel()
	if md, ok := metadata.FromIncomingContext(ctx); ok {
		ctx = metadata.NewOutgoingContext(ctx, md)
	}
	// Not waiting for a containerd that is away: its absence is kubelet's to know.
	to, err := p.conn.NewStream(ctx, &grpc.StreamDesc{ServerStreams: true}, method, grpc.ForceCodecV2(raw{}),
		grpc.WaitForReady(false), grpc.MaxCallRecvMsgSize(maxMessage), grpc.MaxCallSendMsgSize(maxMessage))
	if err != nil {
		return err
	}
	if err := to.SendMsg(&request); err != nil && !errors.Is(err, io.EOF) { // io.EOF: RecvMsg has the reason
		return err
	}
	if err := to.CloseSend(); err != nil {
		return err
	}
	return answer(from, to)
}

// answer passes answers back until the call ends.
func answer(from grpc.ServerStream, to grpc.ClientStream) error {
	for first := true; ; first = false {
		var message mem.BufferSlice
		err := to.RecvMsg(&message)
		if first {
			if md, herr := to.Header(); herr == nil {
				if herr := from.SetHeader(md); herr != nil {
					message.Free()
					return herr
				}
			}
		}
		if err != nil {
			from.SetTrailer(to.Trailer())
			if errors.Is(err, io.EOF) {
				return nil
			}
			return err
		}
		err = from.SendMsg(&message)
		message.Free()
		if err != nil {
			return err
		}
	}
}

// learn takes the credential out of a pull. A request that cannot be read is
// containerd's to refuse.
func (p *Proxy) learn(request mem.BufferSlice) {
	var pull runtime.PullImageRequest
	if proto.Unmarshal(request.Materialize(), &pull) == nil {
		p.ring.Learn(pull.GetImage().GetImage(), pull.GetAuth())
	}
}

// raw is a codec that leaves messages as they are.
type raw struct{}

var _ encoding.CodecV2 = raw{}

func (raw) Name() string { return "proto" } // as which they are sent

func (raw) Marshal(v any) (mem.BufferSlice, error) {
	b, ok := v.(*mem.BufferSlice)
	if !ok {
		return nil, fmt.Errorf("pass on a %T", v)
	}
	b.Ref()
	return *b, nil
}

func (raw) Unmarshal(b mem.BufferSlice, v any) error {
	dst, ok := v.(*mem.BufferSlice)
	if !ok {
		return fmt.Errorf("pass on a %T", v)
	}
	b.Ref()
	*dst = b
	return nil
}
