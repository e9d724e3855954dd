package daemon

import (
	"context"
	"fmt"
	"time"

	contentapi "github.com/containerd/containerd/api/services/content/v1"
	versionapi "github.com/containerd/containerd/api/services/version/v1"
	"github.com/containerd/containerd/v2/core/content"
	"github.com/containerd/containerd/v2/core/content/proxy"
	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/types/known/emptypb"
)

// containerdTimeout bounds the question whether containerd answers.
const containerdTimeout = 2 * time.Second

// containerd is the connection to the containerd that we serve. It need not be
// there: containerd may start after us, and restart.
type containerd struct {
	content.Store
	address string
	conn    *grpc.ClientConn
}

func dialContainerd(address string) (*containerd, error) {
	// A socket is there or not: waiting long before the next try, as for a busy
	// server on a network, would only miss containerd's start.
	params := grpc.ConnectParams{MinConnectTimeout: containerdTimeout, Backoff: backoff.Config{
		BaseDelay: 50 * time.Millisecond, Multiplier: 2, Jitter: 0.2, MaxDelay: time.Second,
	}}
	conn, err := grpc.NewClient("unix://"+address, grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithConnectParams(params), grpc.WithDefaultCallOptions(grpc.WaitForReady(true)))
	if err != nil {
		return nil, fmt.Errorf("connect to containerd: %w", err)
	}
	return &containerd{Store: proxy.NewContentStore(contentapi.NewContentClient(conn)), address: address, conn: conn}, nil
}

// check returns containerd's version.
func (c *containerd) check(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, containerdTimeout)
	defer cancel()
	v, err := versionapi.NewVersionClient(c.conn).Version(ctx, &emptypb.Empty{}, grpc.WaitForReady(false))
	if err != nil {
		return "", fmt.Errorf("no answer from containerd on %s; images are pulled in full until it is there (is containerd running, and is containerd_address right?): %w", c.address, err)
	}
	return v.Version, nil
}

func (c *containerd) close() error { return c.conn.Close() }
