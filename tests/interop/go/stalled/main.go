// Command stalled opens a snapshot stream, reads its first message, and reads on when a line comes on standard input.
//
// Usage: stalled HOST:PORT
//
// It prints {} after the first message. At the stream's end it exits 1 with one line on standard error.
package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"time"

	"clients/namesrv"
	namesrvapi "namesrv.dev/protos/namesrv_api/v1"
)

func main() {
	if len(os.Args) != 2 {
		fmt.Fprintln(os.Stderr, "usage: stalled HOST:PORT")
		os.Exit(2)
	}
	if err := read(os.Args[1]); err != nil && err != io.EOF {
		fmt.Fprintln(os.Stderr, namesrv.Describe(err))
		os.Exit(1)
	}
}

func read(endpoint string) error {
	connection, err := namesrv.Connect(endpoint)
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	stream, err := namesrvapi.NewRouteServiceClient(connection).StreamRouteSnapshot(ctx, &namesrvapi.StreamRouteSnapshotRequest{})
	if err != nil {
		return err
	}
	if _, err := stream.Recv(); err != nil {
		return err
	}
	fmt.Println("{}")
	if _, err := bufio.NewReader(os.Stdin).ReadString('\n'); err != nil {
		return err
	}
	for {
		if _, err := stream.Recv(); err != nil {
			return err
		}
	}
}
