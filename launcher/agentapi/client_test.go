package agentapi_test

import (
	"context"
	"encoding/json"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
	"time"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
)

func serve(t *testing.T, h http.HandlerFunc) *agentapi.Client {
	t.Helper()
	s := httptest.NewServer(h)
	t.Cleanup(s.Close)
	c := agentapi.NewClient(func(ctx context.Context) (net.Conn, error) {
		var d net.Dialer
		return d.DialContext(ctx, "tcp", s.Listener.Addr().String())
	}, "tok")
	t.Cleanup(c.Close)
	return c
}

func TestStatusPlacesStamps(t *testing.T) {
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Authorization") != "Bearer tok" {
			t.Errorf("authorization = %q", r.Header.Get("Authorization"))
		}
		if err := json.NewEncoder(w).Encode(agentapi.Status{Now: agentapi.BootTime(time.Hour)}); err != nil {
			t.Error(err)
		}
	})
	before := time.Now()
	st, sample, err := c.Status(t.Context())
	after := time.Now()
	if err != nil {
		t.Fatal(err)
	}
	if at := sample.Time(st.Now); at.Before(before) || at.After(after) {
		t.Errorf("now = %v, want within [%v, %v]", at, before, after)
	}
	if got := sample.Time(st.Now - agentapi.BootTime(time.Minute)).Sub(sample.Time(st.Now)); got != -time.Minute {
		t.Errorf("a minute earlier = %v", got)
	}
}

func TestClientErrors(t *testing.T) {
	tests := map[string]struct {
		handler http.HandlerFunc
		want    string
		is      error
	}{
		"token": {handler: func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusUnauthorized) }, is: agentapi.ErrUnauthorized},
		"code":  {handler: func(w http.ResponseWriter, _ *http.Request) { http.Error(w, "no", http.StatusTeapot) }, want: "418"},
		"text":  {handler: func(w http.ResponseWriter, _ *http.Request) { _, _ = w.Write([]byte("hello")) }, want: "decode"},
		"endless": {handler: func(w http.ResponseWriter, _ *http.Request) {
			for block := make([]byte, 1<<20); ; {
				if _, err := w.Write(block); err != nil {
					return
				}
			}
		}, want: "longer"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := serve(t, tt.handler).Confirm(t.Context())
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Fatalf("error = %v, want one with %q", err, tt.want)
			}
			if tt.is != nil && !errors.Is(err, tt.is) {
				t.Errorf("error = %v, want %v", err, tt.is)
			}
		})
	}
}
