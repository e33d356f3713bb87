// Command conformance is the program of this client for the cases of clients/conformance, whose README says what it
// reads and prints.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"slices"
	"sync"
	"time"

	"namesrv.dev/routes"
)

type object map[string]any

var printing sync.Mutex

func say(message object) {
	printing.Lock()
	defer printing.Unlock()
	if err := json.NewEncoder(os.Stdout).Encode(message); err != nil {
		log.Fatal(err)
	}
}

// state is a route as the cases have it.
func state(known routes.Known) object {
	if known.Route == nil {
		return object{"brokers": nil, "stale": nil}
	}
	brokers := []string{}
	for _, group := range known.Route.GetBrokerDatas() {
		for _, one := range group.GetBrokerAddrs() {
			mark := ""
			if slices.Contains(group.GetUnconfirmedBrokerIds(), one.GetBrokerId()) {
				mark = "?"
			}
			brokers = append(brokers, fmt.Sprintf("%s/%s:%d%s", group.GetClusterName(), group.GetBrokerName(), one.GetBrokerId(), mark))
		}
	}
	slices.Sort(brokers)
	told := object{"brokers": brokers, "stale": nil}
	if known.Stale != routes.Fresh {
		told["stale"] = known.Stale
	}
	return told
}

// answer does what one line says.
func answer(client *routes.Client, verb, topic string) object {
	var told object
	var err error
	switch verb {
	case "route":
		var known routes.Known
		known, err = client.Route(context.Background(), topic)
		told = state(known)
	case "queues":
		var queues []routes.Queue
		queues, err = client.Queues(context.Background(), topic)
		names := []string{}
		for _, queue := range queues {
			names = append(names, fmt.Sprintf("%s:%d", queue.Broker, queue.ID))
		}
		told = object{"queues": names}
	case "cached":
		known, _ := client.Cached(topic)
		told = state(known)
	case "forget":
		client.Forget(topic)
		told = object{}
	}
	for name, one := range map[string]error{"NOT_FOUND": routes.ErrTopicNotFound, "NO_ANSWER": routes.ErrNoAnswer, "REFUSED": routes.ErrRefused} {
		if errors.Is(err, one) {
			return object{"error": name}
		}
	}
	return told
}

func main() {
	lines := json.NewDecoder(os.Stdin)
	var given struct {
		Servers, Topics []string
		HoldMillis      int64 `json:"hold_millis"`
		TimeoutMillis   int64 `json:"timeout_millis"`
	}
	if err := lines.Decode(&given); err != nil {
		log.Fatal(err)
	}
	settings := routes.Settings{
		Timeout: time.Duration(given.TimeoutMillis) * time.Millisecond,
		Hold:    time.Duration(given.HoldMillis) * time.Millisecond,
	}
	if settings.Hold == 0 {
		settings.Hold = -1
	}
	client, err := routes.Open(given.Servers, settings)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	client.OnChange(func(change routes.Change) {
		told := state(change.After)
		told["change"] = change.After.Topic
		say(told)
	})
	if err := client.Keep(given.Topics...); err != nil {
		log.Fatal(err)
	}
	for {
		var line map[string]string
		if lines.Decode(&line) != nil {
			return
		}
		for verb, topic := range line {
			say(answer(client, verb, topic))
		}
	}
}
