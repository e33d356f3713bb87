// Command watch prints where topics live, each time that it changes: watch HOST:PORT[,HOST:PORT...] TOPIC...
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"strings"
	"sync"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "namesrv.dev/protos/namesrv_api/v1"
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

// hold is how long a topic keeps its route when all its brokers vanish and the name server does not know that they ended.
const hold = 120 * time.Second

var ended = []pb.RemovalReason{
	pb.RemovalReason_REMOVAL_REASON_UNREGISTERED,
	pb.RemovalReason_REMOVAL_REASON_BROKER_DOWN,
	pb.RemovalReason_REMOVAL_REASON_REPLACED,
	pb.RemovalReason_REMOVAL_REASON_NOT_IN_REGISTRATION,
	pb.RemovalReason_REMOVAL_REASON_DELETED_BY_OPERATOR,
	pb.RemovalReason_REMOVAL_REASON_LOSS_CONFIRMED,
}

// myMistake has the codes with which every name server would answer the same.
var myMistake = []codes.Code{codes.InvalidArgument, codes.Unauthenticated, codes.PermissionDenied, codes.Unimplemented}

// watch is what is kept between two streams.
type watch struct {
	topics []string
	// options of each connection.
	options []grpc.DialOption
	// bookmark: all that happened up to this point was told. It is of one name server, and means nothing to another.
	bookmark *pb.ResumePoint
	// failures since the last message.
	failures int
	// lock guards brokers and holds: timers use them, too.
	lock sync.Mutex
	// brokers of each topic's route.
	brokers map[string][]broker
	// holds of the topics whose lost route is kept for now.
	holds map[string]*time.Timer
}

type broker struct {
	name string
	id   int64
}

// follow says what a name server tells, until the stream breaks.
func (w *watch) follow(namesrv string) error {
	after := "from the beginning"
	if w.bookmark != nil {
		after = fmt.Sprint("after ", w.bookmark.GetRevision())
	}
	fmt.Println("watching", namesrv, after)
	connection, err := grpc.NewClient(namesrv, w.options...)
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	deadline := time.AfterFunc(firstMessage, cancel)
	defer deadline.Stop()
	stream, err := pb.NewRouteServiceClient(connection).WatchTopicRoutes(ctx)
	if err != nil {
		return err
	}
	// Later messages would add topics to the open watch. Recv says why the stream ended if Send cannot.
	_ = stream.Send(&pb.WatchTopicRoutesRequest{Topics: w.topics, ResumeAfter: w.bookmark})
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


// readCredentials reads them from the environment. Without NAMESRV_CA, connections are plaintext.
func readCredentials() ([]grpc.DialOption, error) {
	ca := os.Getenv("NAMESRV_CA")
	if ca == "" {
		return []grpc.DialOption{grpc.WithTransportCredentials(insecure.NewCredentials())}, nil
	}
	authority, err := os.ReadFile(ca)
	if err != nil {
		return nil, err
	}
	config := &tls.Config{RootCAs: x509.NewCertPool()}
	if !config.RootCAs.AppendCertsFromPEM(authority) {
		return nil, fmt.Errorf("%s contains no certificate", ca)
	}
	if certificate := os.Getenv("NAMESRV_CERT"); certificate != "" {
		pair, err := tls.LoadX509KeyPair(certificate, os.Getenv("NAMESRV_KEY"))
		if err != nil {
			return nil, err
		}
		config.Certificates = []tls.Certificate{pair}
	}
	options := []grpc.DialOption{grpc.WithTransportCredentials(credentials.NewTLS(config))}
	if token := os.Getenv("NAMESRV_TOKEN"); token != "" {
		options = append(options, grpc.WithPerRPCCredentials(bearer(token)))
	}
	return options, nil
}

// bearer is a token, which gRPC sends with each call.
type bearer string

func (token bearer) GetRequestMetadata(context.Context, ...string) (map[string]string, error) {
	return map[string]string{"authorization": "Bearer " + string(token)}, nil
}

// RequireTransportSecurity keeps the token off connections without TLS.
func (bearer) RequireTransportSecurity() bool { return true }


func (w *watch) take(message *pb.WatchTopicRoutesResponse) {
	w.failures = 0
	for _, change := range message.GetChanges() {
		w.say(change)
	}
	if header := message.GetHeader(); message.GetBookmark() {
		w.bookmark = &pb.ResumePoint{Epoch: header.GetEpoch(), Revision: proto.Int64(header.GetRevision())}
	}
}

// say prints who left the route of a topic since the last message, and its whole route, if it has one.
func (w *watch) say(change *pb.TopicRouteChange) {
	w.lock.Lock()
	defer w.lock.Unlock()
	topic := change.GetTopic()
	if held := w.holds[topic]; held != nil {
		held.Stop()
		delete(w.holds, topic)
	}
	known := w.brokers[topic]
	for _, gone := range change.GetRemovals() {
		reason := strings.TrimPrefix(gone.GetReason().String(), "REMOVAL_REASON_")
		fmt.Printf("%s: %s %s left, %s\n", topic, gone.GetBrokerName(), gone.GetBrokerAddr(), reason)
		if slices.Contains(ended, gone.GetReason()) {
			known = slices.DeleteFunc(known, func(one broker) bool { return isOf(gone, one) })
		}
	}
	switch {
	case change.GetRoute() == nil && len(known) > 0:
		fmt.Printf("%s: its brokers may live, so its route is kept for %.0f s\n", topic, hold.Seconds())
		w.brokers[topic] = known
		var held *time.Timer
		held = time.AfterFunc(hold, func() {
			w.lock.Lock()
			defer w.lock.Unlock()
			if w.holds[topic] == held {
				w.lose(topic)
			}
		})
		w.holds[topic] = held
	case change.GetRoute() == nil: // not there yet, deleted, or its last broker left: the watch goes on
		w.lose(topic)
	default:
		known = nil
		for _, group := range change.GetRoute().GetBrokerDatas() {
			fmt.Printf("%s: %s", topic, group.GetBrokerName())
			for _, one := range group.GetBrokerAddrs() {
				known = append(known, broker{group.GetBrokerName(), one.GetBrokerId()})
				fmt.Printf(" %d=%s", one.GetBrokerId(), one.GetBrokerAddr())
			}
			fmt.Println()
		}
		w.brokers[topic] = known
	}
}

// lose believes that a topic has no route.
func (w *watch) lose(topic string) {
	delete(w.brokers, topic)
	delete(w.holds, topic)
	fmt.Printf("%s: no route\n", topic)
}

// isOf says whether a broker is among those that left: one, a whole group, or without a name all of the topic.
func isOf(gone *pb.BrokerRemoval, one broker) bool {
	sameID := gone.BrokerId == nil || gone.GetBrokerId() == one.id
	return gone.GetBrokerName() == "" || (gone.GetBrokerName() == one.name && sameID)
}

// reasonAndPause has the reason of the name server's table, and how long it wants not to be asked.
func reasonAndPause(failure *status.Status) (reason string, wanted time.Duration) {
	for _, detail := range failure.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			if detail.GetDomain() == "namesrv.dev" {
				reason = detail.GetReason()
			}
		case *errdetails.RetryInfo:
			wanted = detail.GetRetryDelay().AsDuration()
		}
	}
	return reason, wanted
}

// run watches until a name server says that this cannot work.
func run(namesrvs, topics []string, options []grpc.DialOption) {
	options = append(options, grpc.WithKeepaliveParams(pings))
	w := &watch{topics: topics, options: options, brokers: map[string][]broker{}, holds: map[string]*time.Timer{}}
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
		following := at
		if !stays {
			following = (at + 1) % len(namesrvs)
		}
		if reason == "WATCH_EXPIRED" { // so that watches spread over all name servers again
			following = rand.IntN(len(namesrvs))
		}
		if following != at {
			at, w.bookmark, wanted = following, nil, 0
		}
		time.Sleep(max(rand.N(most), wanted))
	}
}

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: watch HOST:PORT[,HOST:PORT...] TOPIC...")
		os.Exit(2)
	}
	options, err := readCredentials()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	run(strings.Split(os.Args[1], ","), os.Args[2:], options)
	os.Exit(1)
}
