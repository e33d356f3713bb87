// Command watch prints where topics live, each time that it changes: watch HOST:PORT[,HOST:PORT...] TOPIC...
package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "clients/namesrv_api/v1"
)

// firstMessage is what a watch has in place of a deadline: its first message always comes.
const firstMessage = 5 * time.Second

const (
	shortestPause = 100 * time.Millisecond
	longestPause  = 5 * time.Second
)

// pings let a name server that vanished without a word be noticed within 15 s: Go's library sends one every 10 s at most.
var pings = keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}

var bookmarkIsOld = []string{"EPOCH_CHANGED", "REVISION_COMPACTED"}

// myMistake has the codes with which every name server would answer the same.
var myMistake = []codes.Code{codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented}

// watch is what is kept between two streams.
type watch struct {
	topics []string
	// bookmark: all that happened up to this point was told. It is of one name server, and means nothing to another.
	bookmark *pb.ResumePoint
	// failures since the last message.
	failures int
}

// follow says what a name server tells, until the stream breaks.
func (w *watch) follow(namesrv string) error {
	after := "from the beginning"
	if w.bookmark != nil {
		after = fmt.Sprint("after ", w.bookmark.GetRevision())
	}
	fmt.Println("watching", namesrv, after)
	connection, err := grpc.NewClient(namesrv,
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithKeepaliveParams(pings))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	deadline := time.AfterFunc(firstMessage, cancel)
	defer deadline.Stop()
	request := &pb.WatchTopicRoutesRequest{Topics: w.topics, ResumeAfter: w.bookmark}
	stream, err := pb.NewRouteServiceClient(connection).WatchTopicRoutes(ctx, request)
	for err == nil {
		var message *pb.WatchTopicRoutesResponse
		if message, err = stream.Recv(); err == nil {
			deadline.Stop()
			w.take(message)
		}
	}
	if errors.Is(err, io.EOF) {
		return nil
	}
	return err
}

func (w *watch) take(message *pb.WatchTopicRoutesResponse) {
	w.failures = 0
	for _, change := range message.GetChanges() {
		say(change)
	}
	if header := message.GetHeader(); message.GetBookmark() {
		w.bookmark = &pb.ResumePoint{Epoch: header.GetEpoch(), Revision: proto.Int64(header.GetRevision())}
	}
}

// say prints the whole route after a change, or that there is none, and who left it since the last message.
func say(change *pb.TopicRouteChange) {
	for _, gone := range change.GetRemovals() {
		reason := strings.TrimPrefix(gone.GetReason().String(), "REMOVAL_REASON_")
		fmt.Printf("%s: %s %s left, %s\n", change.GetTopic(), gone.GetBrokerName(), gone.GetBrokerAddr(), reason)
	}
	if change.GetRoute() == nil { // not there yet, deleted, or its last broker left: the watch goes on
		fmt.Printf("%s: no route\n", change.GetTopic())
	}
	for _, group := range change.GetRoute().GetBrokerDatas() {
		fmt.Printf("%s: %s", change.GetTopic(), group.GetBrokerName())
		for _, one := range group.GetBrokerAddrs() {
			fmt.Printf(" %d=%s", one.GetBrokerId(), one.GetBrokerAddr())
		}
		fmt.Println()
	}
}

// reasonAndPause has the reason of the name server's table, and how long it wants not to be asked.
func reasonAndPause(failure *status.Status) (reason string, wanted time.Duration) {
	for _, detail := range failure.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			if detail.GetDomain() == "namesrv" {
				reason = detail.GetReason()
			}
		case *errdetails.RetryInfo:
			wanted = detail.GetRetryDelay().AsDuration()
		}
	}
	return reason, wanted
}

// run watches until a name server says that this cannot work.
func run(namesrvs, topics []string) {
	w := &watch{topics: topics}
	for at := 0; ; {
		failure := status.Convert(w.follow(namesrvs[at]))
		reason, wanted := reasonAndPause(failure)
		if failure.Code() != codes.OK {
			fmt.Fprintf(os.Stderr, "%s: %s %s: %s\n", namesrvs[at], failure.Code(), reason, failure.Message())
		}
		if slices.Contains(myMistake, failure.Code()) || reason == "LIMIT_EXCEEDED" {
			return
		}
		if slices.Contains(bookmarkIsOld, reason) {
			w.bookmark = nil
			continue
		}
		w.failures++
		most := min(longestPause, shortestPause<<min(w.failures, 10))
		// A connection breaks more often than a name server: the same one is asked once more, after the bookmark.
		stays := w.bookmark != nil && w.failures == 1 && reason != "SHUTTING_DOWN"
		if len(namesrvs) > 1 && !stays {
			at, w.bookmark, wanted = (at+1)%len(namesrvs), nil, 0
		}
		time.Sleep(max(rand.N(most), wanted))
	}
}

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: watch HOST:PORT[,HOST:PORT...] TOPIC...")
		os.Exit(2)
	}
	run(strings.Split(os.Args[1], ","), os.Args[2:])
	os.Exit(1)
}
