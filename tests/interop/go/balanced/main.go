// Command balanced looks a topic up at several name servers again and again, as a service config says.
//
// Usage: balanced FILE HOST:PORT,HOST:PORT... TOPIC
//
// For each line of standard input it prints the calls since the line before: {"answers": {EPOCH: number of answers},
// "failures": [...]}.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"strings"
	"sync"

	"google.golang.org/grpc"

	"clients/namesrv"
	namesrvapi "namesrv.dev/protos/namesrv_api/v1"
	"namesrv.dev/routes"
)

const callers = 2

// mostFailures bounds the list where every call fails.
const mostFailures = 10

// tally is what came of the calls.
type tally struct {
	lock     sync.Mutex
	Answers  map[string]int `json:"answers"`
	Failures []string       `json:"failures"`
}

func (t *tally) add(response *namesrvapi.GetTopicRouteResponse, err error) {
	t.lock.Lock()
	defer t.lock.Unlock()
	switch {
	case err == nil:
		t.Answers[response.GetHeader().GetEpoch()]++
	case len(t.Failures) < mostFailures:
		t.Failures = append(t.Failures, namesrv.Describe(err))
	}
}

func (t *tally) print() error {
	t.lock.Lock()
	defer t.lock.Unlock()
	text, err := json.Marshal(t)
	fmt.Println(string(text))
	t.Answers, t.Failures = map[string]int{}, []string{}
	return err
}

func run(file string, endpoints []string, topic string) error {
	serviceConfig, err := os.ReadFile(file)
	if err != nil {
		return err
	}
	connection, err := routes.Dial(endpoints, routes.Security{}, grpc.WithDefaultServiceConfig(string(serviceConfig)))
	if err != nil {
		return err
	}
	defer connection.Close()
	stub, told := namesrvapi.NewRouteServiceClient(connection), tally{Answers: map[string]int{}, Failures: []string{}}
	for range callers {
		go func() {
			for {
				told.add(stub.GetTopicRoute(context.Background(), &namesrvapi.GetTopicRouteRequest{Topic: topic}))
			}
		}()
	}
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		if err := told.print(); err != nil {
			return err
		}
	}
	return lines.Err()
}

func main() {
	if len(os.Args) != 4 {
		fmt.Fprintln(os.Stderr, "usage: balanced FILE HOST:PORT,HOST:PORT... TOPIC")
		os.Exit(2)
	}
	if err := run(os.Args[1], strings.Split(os.Args[2], ","), os.Args[3]); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
