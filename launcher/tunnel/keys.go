package tunnel

import (
	"crypto/ed25519"
	"crypto/rand"
	"encoding/pem"
	"errors"
	"fmt"
	"strings"

	"golang.org/x/crypto/ssh"
)

// Key is an Ed25519 key pair in the two forms that are written down.
type Key struct {
	Private string // OpenSSH PEM; a secret
	Public  string // one authorized_keys line, without a line feed
}

// NewKey makes a key pair. The comment says whose it is.
func NewKey(comment string) (Key, error) {
	_, private, err := ed25519.GenerateKey(rand.Reader)
	if err != nil {
		return Key{}, fmt.Errorf("make ssh key: %w", err)
	}
	block, err := ssh.MarshalPrivateKey(private, comment)
	if err != nil {
		return Key{}, fmt.Errorf("encode ssh key: %w", err)
	}
	public, err := ssh.NewPublicKey(private.Public())
	if err != nil {
		return Key{}, fmt.Errorf("encode ssh key: %w", err)
	}
	line := strings.TrimSpace(string(ssh.MarshalAuthorizedKey(public)))
	if comment != "" {
		line += " " + comment
	}
	return Key{Private: string(pem.EncodeToMemory(block)), Public: line}, nil
}

// ParsePublicKey reads an authorized_keys line.
func ParsePublicKey(line string) (ssh.PublicKey, error) {
	key, _, _, _, err := ssh.ParseAuthorizedKey([]byte(line))
	if err != nil {
		return nil, fmt.Errorf("parse ssh public key: %w", err)
	}
	return key, nil
}

// ParsePrivateKey reads a private key without a passphrase. Its error never
// quotes the key.
func ParsePrivateKey(pem string) (ssh.Signer, error) {
	signer, err := ssh.ParsePrivateKey([]byte(pem))
	if missing := (*ssh.PassphraseMissingError)(nil); errors.As(err, &missing) {
		return nil, errors.New("parse ssh private key: it is protected by a passphrase")
	}
	if err != nil {
		return nil, errors.New("parse ssh private key: not a PEM private key")
	}
	return signer, nil
}
