package clustertest

import (
	"bytes"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"time"

	"golang.org/x/crypto/ssh"

	"github.com/firstlight-dev/firstlight/launcher/agentapi"
	"github.com/firstlight-dev/firstlight/launcher/cluster"
)

// environment is the inside of one container.
type environment struct {
	launch      cluster.Launch
	born        time.Time
	ssh, status net.Listener
	http        *http.Server
	wait        sync.WaitGroup
	observed    cluster.Observed // guarded by Fake.mu
}

func newEnvironment(l *cluster.Launch) (*environment, error) {
	e := &environment{launch: *l, born: time.Now()}
	signer, err := ssh.ParsePrivateKey([]byte(l.Agent.SSH.HostKey))
	if err != nil {
		return nil, err
	}
	if e.ssh, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, err
	}
	if e.status, err = net.Listen("tcp", "127.0.0.1:0"); err != nil {
		return nil, errors.Join(err, e.ssh.Close())
	}
	server := &ssh.ServerConfig{PublicKeyCallback: e.authorize}
	server.AddHostKey(signer)
	mux := http.NewServeMux()
	mux.HandleFunc("GET "+agentapi.StatusPath, e.serveStatus)
	mux.HandleFunc("POST "+agentapi.ConfirmPath, e.serveConfirm)
	e.http = &http.Server{Handler: mux, ReadHeaderTimeout: time.Second}
	e.wait.Go(func() { _ = e.http.Serve(e.status) }) // ends with close
	e.wait.Go(func() {
		for {
			conn, err := e.ssh.Accept()
			if err != nil {
				return
			}
			e.wait.Go(func() { serveSSH(conn, server) })
		}
	})
	return e, nil
}

func (e *environment) close() {
	_ = e.http.Close()
	_ = e.ssh.Close()
}

func (e *environment) authorize(_ ssh.ConnMetadata, key ssh.PublicKey) (*ssh.Permissions, error) {
	for _, line := range e.launch.Agent.SSH.AuthorizedKeys {
		known, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
		if err == nil && bytes.Equal(known.Marshal(), key.Marshal()) {
			return &ssh.Permissions{}, nil
		}
	}
	return nil, errors.New("not an authorized key")
}

func (e *environment) boot() agentapi.BootTime {
	return agentapi.BootTime(time.Since(e.born) + time.Hour)
}

func (e *environment) admit(w http.ResponseWriter, r *http.Request) bool {
	if r.Header.Get("Authorization") != "Bearer "+e.launch.Agent.Status.Token {
		w.WriteHeader(http.StatusUnauthorized)
		return false
	}
	return true
}

func (e *environment) serveStatus(w http.ResponseWriter, r *http.Request) {
	if !e.admit(w, r) {
		return
	}
	hour := agentapi.BootTime(time.Hour)
	st := agentapi.Status{
		Environment: e.launch.Env, Now: e.boot(),
		Start: agentapi.Start{BootID: "boot", Init: hour, Agent: hour + 1, Ready: hour + agentapi.BootTime(time.Millisecond)},
	}
	for _, p := range e.launch.Agent.Probes {
		st.Lanes = append(st.Lanes, agentapi.Lane{
			Probe: p.ID, State: agentapi.LaneSucceeded, Eligible: hour + agentapi.BootTime(time.Millisecond),
			FirstSuccess: hour + agentapi.BootTime(2*time.Millisecond), Attempts: 1,
		})
	}
	_ = json.NewEncoder(w).Encode(st) // the client may be gone
}

func (e *environment) serveConfirm(w http.ResponseWriter, r *http.Request) {
	if !e.admit(w, r) {
		return
	}
	round := agentapi.Round{OK: true}
	for _, p := range e.launch.Agent.Probes {
		round.Results = append(round.Results, agentapi.RoundResult{Probe: p.ID, OK: true})
	}
	_ = json.NewEncoder(w).Encode(round) // the client may be gone
}

// serveSSH answers a ping, a shell that is asked what a login probe asks, and
// any other command with its own text.
func serveSSH(conn net.Conn, cfg *ssh.ServerConfig) {
	defer conn.Close()
	sc, channels, requests, err := ssh.NewServerConn(conn, cfg)
	if err != nil {
		return
	}
	defer sc.Close()
	go ssh.DiscardRequests(requests)
	for nc := range channels {
		channel, reqs, err := nc.Accept()
		if err != nil {
			return
		}
		go session(channel, reqs)
	}
}

func session(channel ssh.Channel, requests <-chan *ssh.Request) {
	defer channel.Close()
	for r := range requests {
		switch r.Type {
		case "pty-req", "env":
			_ = r.Reply(true, nil)
		case "subsystem":
			_ = r.Reply(true, nil)
			exit(channel)
			return
		case "shell":
			_ = r.Reply(true, nil)
			line := make([]byte, 512)
			n, _ := channel.Read(line) // what is missing shows in the answer
			_, _ = io.WriteString(channel, answer(string(line[:n])))
			exit(channel)
			return
		case "exec":
			_ = r.Reply(true, nil)
			var command struct{ Text string }
			_ = ssh.Unmarshal(r.Payload, &command)
			_, _ = io.WriteString(channel, command.Text+"\n")
			exit(channel)
			return
		default:
			_ = r.Reply(false, nil)
		}
	}
}

// answer does what a shell does with: printf '%s%s\n' A B; id -u; exit
func answer(line string) string {
	_, rest, _ := strings.Cut(line, `\n' `)
	words, _, _ := strings.Cut(rest, ";")
	return strings.ReplaceAll(words, " ", "") + "\r\n0\r\n"
}

func exit(channel ssh.Channel) {
	_, _ = channel.SendRequest("exit-status", false, ssh.Marshal(struct{ Code uint32 }{}))
}
