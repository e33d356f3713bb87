// Command watch prints topics' routes as they change: one line of JSON for each change and each bookmark.
//
// Usage: watch [--after EPOCH/REVISION] [--add TOPIC] HOST:PORT TOPIC|PREFIX*...
//
// The topic of --add joins the open watch after the first bookmark. A change is {"revision": ..., "change": a TopicRouteChange}, a bookmark {"revision": ..., "epoch": ...,
// "bookmark": true}: the point to give to --after, so that only what changed since is printed. It ends when it is
// ended, or exits 1 with one line on standard error if the stream fails.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"google.golang.org/protobuf/proto"

	"clients/namesrv"
	namesrvapi "namesrv.dev/protos/namesrv_api/v1"
)

// line is one line of output; what is empty is left out.
type line struct {
	Revision string          `json:"revision"`
	Change   json.RawMessage `json:"change,omitempty"`
	Epoch    string          `json:"epoch,omitempty"`
	Bookmark bool            `json:"bookmark,omitempty"`
}

func main() {
	request := &namesrvapi.WatchTopicRoutesRequest{}
	added := flag.String("add", "", "`TOPIC` that joins the watch after the first bookmark")
	flag.Func("after", "resume after `EPOCH/REVISION`", func(text string) (err error) {
		request.ResumeAfter, err = resumePoint(text)
		return err
	})
	flag.Parse()
	if flag.NArg() < 2 {
		fmt.Fprintln(os.Stderr, "usage: watch [--after EPOCH/REVISION] [--add TOPIC] HOST:PORT TOPIC|PREFIX*...")
		os.Exit(2)
	}
	for _, name := range flag.Args()[1:] {
		if prefix, ok := strings.CutSuffix(name, "*"); ok {
			request.TopicPrefixes = append(request.TopicPrefixes, prefix)
		} else {
			request.Topics = append(request.Topics, name)
		}
	}
	if err := watch(flag.Arg(0), request, *added); err != nil {
		fmt.Fprintln(os.Stderr, namesrv.Describe(err))
		os.Exit(1)
	}
}

func resumePoint(text string) (*namesrvapi.ResumePoint, error) {
	epoch, number, _ := strings.Cut(text, "/")
	revision, err := strconv.ParseInt(number, 10, 64)
	return &namesrvapi.ResumePoint{Epoch: epoch, Revision: proto.Int64(revision)}, err
}

func watch(endpoint string, request *namesrvapi.WatchTopicRoutesRequest, added string) error {
	connection, err := namesrv.Connect(endpoint)
	if err != nil {
		return err
	}
	defer connection.Close()

	// No deadline: a watch ends when one side leaves.
	stream, err := namesrvapi.NewRouteServiceClient(connection).WatchTopicRoutes(context.Background())
	if err != nil {
		return err
	}
	// A stream that has ended says why to Recv.
	_ = stream.Send(request)
	for {
		message, err := stream.Recv()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
		if err := print(message); err != nil {
			return err
		}
		if message.GetBookmark() && added != "" {
			_ = stream.Send(&namesrvapi.WatchTopicRoutesRequest{Topics: []string{added}})
			added = ""
		}
	}
}

func print(message *namesrvapi.WatchTopicRoutesResponse) error {
	output := json.NewEncoder(os.Stdout)
	revision := strconv.FormatInt(message.GetHeader().GetRevision(), 10)
	for _, change := range message.GetChanges() {
		text, err := namesrv.JSON(change)
		if err != nil {
			return err
		}
		if err := output.Encode(line{Revision: revision, Change: text}); err != nil {
			return err
		}
	}
	if !message.GetBookmark() {
		return nil
	}
	return output.Encode(line{Revision: revision, Epoch: message.GetHeader().GetEpoch(), Bookmark: true})
}
