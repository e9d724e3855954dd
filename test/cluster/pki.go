package cluster

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/base64"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"time"
)

// certificateLifetime is longer than any cluster lives.
const certificateLifetime = 30 * 24 * time.Hour

// authority signs every certificate of a cluster, servers' and users'.
type authority struct {
	dir  string
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

// subject is whom a certificate names. Kubernetes reads the common name as
// the user and the organizations as the groups.
type subject struct {
	name   string
	groups []string
	hosts  []string // names and addresses of a server; empty for a user
}

func newAuthority(dir string) (*authority, error) {
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return nil, fmt.Errorf("make certificate folder: %w", err)
	}
	a := &authority{dir: dir}
	template := &x509.Certificate{
		SerialNumber:          big.NewInt(1),
		Subject:               pkix.Name{CommonName: "firstlight-test-cluster"},
		NotBefore:             time.Now().Add(-time.Hour),
		NotAfter:              time.Now().Add(certificateLifetime),
		KeyUsage:              x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
		BasicConstraintsValid: true,
		IsCA:                  true,
	}
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, fmt.Errorf("generate authority key: %w", err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		return nil, fmt.Errorf("sign authority certificate: %w", err)
	}
	if a.cert, err = x509.ParseCertificate(der); err != nil {
		return nil, fmt.Errorf("parse authority certificate: %w", err)
	}
	a.key = key
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})
	keyPEM, err := encodeKey(key)
	if err != nil {
		return nil, err
	}
	return a, a.write("ca", a.pem, keyPEM)
}

// loadAuthority reads what newAuthority wrote.
func loadAuthority(dir string) (*authority, error) {
	a := &authority{dir: dir}
	pair, err := tls.LoadX509KeyPair(a.path("ca.crt"), a.path("ca.key"))
	if err != nil {
		return nil, fmt.Errorf("load authority: %w", err)
	}
	key, ok := pair.PrivateKey.(*ecdsa.PrivateKey)
	if !ok {
		return nil, fmt.Errorf("load authority: key is a %T", pair.PrivateKey)
	}
	a.cert, a.key = pair.Leaf, key
	a.pem = pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: pair.Leaf.Raw})
	return a, nil
}

// issue signs a certificate and returns it with its key, both PEM.
func (a *authority) issue(s subject) (cert, key []byte, err error) {
	serial, err := rand.Int(rand.Reader, new(big.Int).Lsh(big.NewInt(1), 120))
	if err != nil {
		return nil, nil, fmt.Errorf("draw serial number: %w", err)
	}
	template := &x509.Certificate{
		SerialNumber: serial,
		Subject:      pkix.Name{CommonName: s.name, Organization: s.groups},
		NotBefore:    time.Now().Add(-time.Hour),
		NotAfter:     time.Now().Add(certificateLifetime),
		KeyUsage:     x509.KeyUsageDigitalSignature,
		ExtKeyUsage:  []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth},
	}
	for _, host := range s.hosts {
		template.ExtKeyUsage = []x509.ExtKeyUsage{x509.ExtKeyUsageServerAuth}
		if ip := net.ParseIP(host); ip != nil {
			template.IPAddresses = append(template.IPAddresses, ip)
		} else {
			template.DNSNames = append(template.DNSNames, host)
		}
	}
	private, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return nil, nil, fmt.Errorf("generate key of %s: %w", s.name, err)
	}
	der, err := x509.CreateCertificate(rand.Reader, template, a.cert, private.Public(), a.key)
	if err != nil {
		return nil, nil, fmt.Errorf("sign certificate of %s: %w", s.name, err)
	}
	key, err = encodeKey(private)
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), key, err
}

// issueFiles writes <file>.crt and <file>.key.
func (a *authority) issueFiles(file string, s subject) error {
	cert, key, err := a.issue(s)
	if err != nil {
		return err
	}
	return a.write(file, cert, key)
}

func (a *authority) write(file string, cert, key []byte) error {
	if err := os.WriteFile(a.path(file+".crt"), cert, 0o644); err != nil {
		return fmt.Errorf("write certificate: %w", err)
	}
	if err := os.WriteFile(a.path(file+".key"), key, 0o600); err != nil {
		return fmt.Errorf("write key: %w", err)
	}
	return nil
}

func (a *authority) path(file string) string { return filepath.Join(a.dir, file) }

// serviceAccountKeys writes the pair that signs and checks tokens of pods.
func (a *authority) serviceAccountKeys() error {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		return fmt.Errorf("generate token key: %w", err)
	}
	private, err := encodeKey(key)
	if err != nil {
		return err
	}
	der, err := x509.MarshalPKIXPublicKey(key.Public())
	if err != nil {
		return fmt.Errorf("encode token key: %w", err)
	}
	if err := os.WriteFile(a.path("sa.key"), private, 0o600); err != nil {
		return fmt.Errorf("write token key: %w", err)
	}
	public := pem.EncodeToMemory(&pem.Block{Type: "PUBLIC KEY", Bytes: der})
	if err := os.WriteFile(a.path("sa.pub"), public, 0o644); err != nil {
		return fmt.Errorf("write token key: %w", err)
	}
	return nil
}

// kubeconfig writes a kubeconfig of a user for a server and returns its path.
func (a *authority) kubeconfig(file, server string, s subject) (string, error) {
	cert, key, err := a.issue(s)
	if err != nil {
		return "", err
	}
	const form = `apiVersion: v1
kind: Config
current-context: default
clusters: [{name: default, cluster: {server: "https://%s", certificate-authority-data: %s}}]
users: [{name: default, user: {client-certificate-data: %s, client-key-data: %s}}]
contexts: [{name: default, context: {cluster: default, user: default}}]
`
	encode := base64.StdEncoding.EncodeToString
	path := a.path(file + ".kubeconfig")
	text := fmt.Sprintf(form, server, encode(a.pem), encode(cert), encode(key))
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		return "", fmt.Errorf("write kubeconfig: %w", err)
	}
	return path, nil
}

// clientTLS is the TLS configuration of a client with that identity.
func (a *authority) clientTLS(s subject) (*tls.Config, error) {
	cert, key, err := a.issue(s)
	if err != nil {
		return nil, err
	}
	pair, err := tls.X509KeyPair(cert, key)
	if err != nil {
		return nil, fmt.Errorf("pair certificate and key: %w", err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(a.cert)
	return &tls.Config{RootCAs: pool, Certificates: []tls.Certificate{pair}, MinVersion: tls.VersionTLS13}, nil
}

func encodeKey(key *ecdsa.PrivateKey) ([]byte, error) {
	der, err := x509.MarshalECPrivateKey(key)
	if err != nil {
		return nil, fmt.Errorf("encode key: %w", err)
	}
	return pem.EncodeToMemory(&pem.Block{Type: "EC PRIVATE KEY", Bytes: der}), nil
}
