package routes

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	_ "embed"
	"errors"
	"fmt"
	"net"
	"os"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/backoff"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	_ "google.golang.org/grpc/health" // the service config checks health
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/resolver"
	"google.golang.org/grpc/resolver/manual"
)

// ServiceConfig balances and repeats lookups: docs/grpc.md explains it.
//
//go:embed service_config.json
var ServiceConfig string

// pings let a name server that vanished without a word be noticed within 15 s: grpc-go sends one every 10 s at most.
var pings = keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}

// reconnects quickly: a name server that is back is tried again within a second, not within two minutes.
var reconnects = grpc.ConnectParams{
	Backoff:           backoff.Config{BaseDelay: 100 * time.Millisecond, Multiplier: 1.6, Jitter: 0.2, MaxDelay: time.Second},
	MinConnectTimeout: 3 * time.Second,
}

// Security is how connections are protected. The zero value is plain text.
type Security struct {
	// TLS is nil for plain text. The certificate of a name server must name the host of its HOST:PORT.
	TLS *tls.Config
	// Token returns the token of the caller; nil for none. It is asked before each call, and needs TLS.
	Token func(context.Context) (string, error)
}

func (s Security) options() ([]grpc.DialOption, error) {
	if s.TLS == nil && s.Token != nil {
		return nil, errors.New("a token needs TLS: anybody could read it in plain text")
	}
	transport := insecure.NewCredentials()
	if s.TLS != nil {
		transport = credentials.NewTLS(s.TLS)
	}
	options := []grpc.DialOption{
		grpc.WithTransportCredentials(transport), grpc.WithKeepaliveParams(pings), grpc.WithConnectParams(reconnects),
	}
	if s.Token != nil {
		options = append(options, grpc.WithPerRPCCredentials(bearer(s.Token)))
	}
	return options, nil
}

type bearer func(context.Context) (string, error)

func (token bearer) GetRequestMetadata(ctx context.Context, _ ...string) (map[string]string, error) {
	text, err := token(ctx)
	if err != nil {
		return nil, err
	}
	return map[string]string{"authorization": "Bearer " + text}, nil
}

// RequireTransportSecurity keeps the token off connections without TLS.
func (bearer) RequireTransportSecurity() bool { return true }

// SecurityFromEnvironment reads the files NAMESRV_CA, NAMESRV_CERT and NAMESRV_KEY, and the token NAMESRV_TOKEN. Without
// NAMESRV_CA, connections are plain text.
func SecurityFromEnvironment() (Security, error) {
	ca := os.Getenv("NAMESRV_CA")
	if ca == "" {
		return Security{}, nil
	}
	authority, err := os.ReadFile(ca)
	if err != nil {
		return Security{}, err
	}
	security := Security{TLS: &tls.Config{RootCAs: x509.NewCertPool()}}
	if !security.TLS.RootCAs.AppendCertsFromPEM(authority) {
		return Security{}, fmt.Errorf("%s contains no certificate", ca)
	}
	if certificate := os.Getenv("NAMESRV_CERT"); certificate != "" {
		pair, err := tls.LoadX509KeyPair(certificate, os.Getenv("NAMESRV_KEY"))
		if err != nil {
			return Security{}, err
		}
		security.TLS.Certificates = []tls.Certificate{pair}
	}
	if token := os.Getenv("NAMESRV_TOKEN"); token != "" {
		security.Token = func(context.Context) (string, error) { return token, nil }
	}
	return security, nil
}

// Dial connects to a list of name servers as one target, with the service config and keepalive: lookups with the
// generated stubs go to all of them in turn. Do not watch over it: a watch resumes at its own name server.
func Dial(namesrvs []string, security Security, more ...grpc.DialOption) (*grpc.ClientConn, error) {
	if err := checkEndpoints(namesrvs); err != nil {
		return nil, err
	}
	options, err := security.options()
	if err != nil {
		return nil, err
	}
	options = append(options, grpc.WithResolvers(List(namesrvs)), grpc.WithDefaultServiceConfig(ServiceConfig))
	return grpc.NewClient("namesrvs:///list", append(options, more...)...)
}

// List resolves the target namesrvs:///list to name servers, each a HOST:PORT.
func List(namesrvs []string) resolver.Builder {
	list := manual.NewBuilderWithScheme("namesrvs")
	var state resolver.State
	for _, namesrv := range namesrvs {
		addresses := []resolver.Address{{Addr: namesrv, ServerName: namesrv}}
		state.Endpoints = append(state.Endpoints, resolver.Endpoint{Addresses: addresses})
	}
	list.InitialState(state)
	return list
}

// Endpoints splits a list such as that of the variable NAMESRV_ADDR: "a:9876;b:9876".
func Endpoints(list string) []string {
	return strings.FieldsFunc(list, func(r rune) bool { return strings.ContainsRune(";, \t\n", r) })
}

func checkEndpoints(namesrvs []string) error {
	if len(namesrvs) == 0 {
		return errors.New("no name server was given")
	}
	for _, namesrv := range namesrvs {
		if host, port, err := net.SplitHostPort(namesrv); err != nil || host == "" || port == "" {
			return fmt.Errorf("%q is not HOST:PORT", namesrv)
		}
	}
	return nil
}
