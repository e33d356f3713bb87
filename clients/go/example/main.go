// Command example prints where a message with each of some keys goes, and each change of the topic's route.
package main

import (
	"context"
	"fmt"
	"log"
	"os"

	"namesrv.dev/routes"
)

func main() {
	if len(os.Args) < 3 {
		log.Fatal("usage: example HOST:PORT[;HOST:PORT...] TOPIC KEY...")
	}
	security, err := routes.SecurityFromEnvironment()
	if err != nil {
		log.Fatal(err)
	}
	client, err := routes.Open(routes.Endpoints(os.Args[1]), routes.Settings{Security: security})
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	// Before the first lookup, or the next change could be missed. The lookup itself is a change from no route.
	client.OnChange(func(change routes.Change) {
		if change.Before.Route != nil {
			fmt.Printf("%s: %d broker groups now %s\n", change.After.Topic, len(change.After.Route.GetBrokerDatas()), change.After.Stale)
		}
	})
	queues, err := client.Queues(context.Background(), os.Args[2])
	if err != nil {
		log.Fatal(err)
	}
	for _, key := range os.Args[3:] {
		queue := routes.ByKey(queues, key)
		fmt.Printf("%s: queue %d of %s\n", key, queue.ID, queue.Broker)
	}
	select {}
}
