// Command lookup prints where a topic lives: a name server's route as JSON.
//
// Usage: lookup HOST:PORT TOPIC
//
// It exits 1 with one line on standard error if the call fails.
package main

import (
	"context"
	"fmt"
	"os"
	"time"

	"clients/namesrv"
	namesrvapi "namesrv.dev/protos/namesrv_api/v1"
)

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: lookup HOST:PORT TOPIC")
		os.Exit(2)
	}
	if err := lookup(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, namesrv.Describe(err))
		os.Exit(1)
	}
}

func lookup(endpoint, topic string) error {
	connection, err := namesrv.Connect(endpoint)
	if err != nil {
		return err
	}
	defer connection.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	request := &namesrvapi.GetTopicRouteRequest{Topic: topic}
	response, err := namesrvapi.NewRouteServiceClient(connection).GetTopicRoute(ctx, request)
	if err != nil {
		return err
	}
	text, err := namesrv.JSON(response)
	if err != nil {
		return err
	}
	fmt.Println(string(text))
	return nil
}
