// Command images makes one of the test images and pushes it to a registry.
//
//	go run ./test/images/cmd/images [-cache DIR] scipy|py|busybox [REF]
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"log/slog"
	"os"
	"os/signal"
	"syscall"

	v1 "github.com/google/go-containerregistry/pkg/v1"

	"github.com/firstlight-dev/firstlight/test/images"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	cache := flag.String("cache", ".cache/images", "folder that keeps made images")
	flag.Parse()
	err := run(ctx, *cache, flag.Args())
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "images:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, cache string, args []string) error {
	maker := &images.Maker{Dir: cache, Log: slog.Default()}
	makers := map[string]func(context.Context) (v1.Image, error){
		"scipy":   maker.Scipy,
		"py":      maker.Py,
		"busybox": maker.Busybox,
	}
	if len(args) < 1 || len(args) > 2 || makers[args[0]] == nil {
		return errors.New("usage: images [-cache DIR] scipy|py|busybox [REF]")
	}
	img, err := makers[args[0]](ctx)
	if err != nil {
		return err
	}
	digest, err := img.Digest()
	if err != nil {
		return fmt.Errorf("digest image: %w", err)
	}
	compressed, uncompressed, err := images.Sizes(img)
	if err != nil {
		return err
	}
	fmt.Printf("%s %s: %.1f MB, unpacked %.1f MB\n", args[0], digest, float64(compressed)/1e6, float64(uncompressed)/1e6)
	if len(args) == 2 {
		return images.Push(ctx, img, args[1])
	}
	return nil
}
