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

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"

	namesrvapi "lookup/namesrv_api/v1"
)

const errorDomain = "namesrv"

func main() {
	if len(os.Args) != 3 {
		fmt.Fprintln(os.Stderr, "usage: lookup HOST:PORT TOPIC")
		os.Exit(2)
	}
	if err := lookup(os.Args[1], os.Args[2]); err != nil {
		fmt.Fprintln(os.Stderr, describe(err))
		os.Exit(1)
	}
}

func lookup(endpoint, topic string) error {
	connection, err := grpc.NewClient(
		endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
	)
	if err != nil {
		return err
	}
	defer connection.Close()

	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	request := &namesrvapi.GetTopicRouteRequest{Topic: topic}
	response, err := namesrvapi.NewRouteServiceClient(connection).GetTopicRoute(ctx, request)
	if err != nil {
		return err
	}
	// protojson writes 64-bit numbers as strings, which is right: JSON's numbers are exact only up to 2^53.
	text, err := protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(response)
	if err != nil {
		return err
	}
	fmt.Println(string(text))
	return nil
}

// describe says which code, which reason of the name server's table, and what a person should read.
func describe(err error) string {
	failure := status.Convert(err)
	for _, detail := range failure.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == errorDomain {
			return fmt.Sprintf("%s %s: %s", failure.Code(), info.GetReason(), failure.Message())
		}
	}
	return fmt.Sprintf("%s: %s", failure.Code(), failure.Message())
}
