package routes

import (
	"context"
	"errors"
	"io"
	"maps"
	"slices"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	health "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	pb "namesrv.dev/protos/namesrv_api/v1"
)

const (
	// steadyAfter is how long a watch lasts that counts as an answer. One that ends earlier, again and again, must lead
	// to longer pauses.
	steadyAfter = 5 * time.Second
	// unreadyFor is how long a name server is watched that says it is not ready, before another one is looked for.
	unreadyFor = 5 * time.Second
	// updateEvery is the shortest time between two requests of a watch: a program that asks for one topic after the other
	// must not cost the name server a request for each.
	updateEvery = 50 * time.Millisecond
)

// fromTheBeginning has the reasons why a watch cannot be resumed. It is opened again at once, without a resume point.
var fromTheBeginning = []string{"EPOCH_CHANGED", "REVISION_COMPACTED"}

// watched is where the last watch ended, or the open one stands; before the first one, what lookups have brought.
type watched struct {
	endpoint string
	topics   additions
	point    *pb.ResumePoint
}

// keepWatching watches one name server after the other until the client is closed.
func (c *Client) keepWatching() {
	for {
		c.mu.Lock()
		endpoint, delay, mayBeUnready := c.chooser.at(), c.chooser.delay(time.Now()), c.chooser.allFailed()
		c.mu.Unlock()
		select {
		case <-time.After(delay):
		case <-c.ctx.Done():
			return
		}
		err := c.session(endpoint, mayBeUnready)
		if c.ctx.Err() != nil {
			return
		}
		c.mu.Lock()
		c.open, c.watching = nil, ""
		if err != nil {
			c.leave(endpoint, err)
		}
		c.mu.Unlock()
	}
}

func (c *Client) leave(endpoint string, err error) {
	failed := errorOf(endpoint, err)
	log := c.settings.Log.Debug
	if c.lastError == nil || !c.cache.cutOff {
		log = c.settings.Log.Warn
	}
	log("routes are not kept up to date", "error", failed)
	c.lastError = failed
	c.chooser.failed(failed.RetryAfter, time.Now())
	if c.chooser.allFailed() {
		c.tell(c.cache.setCutOff(true)...)
	}
}

// session is with one name server. It ends without an error when it is time to choose one anew.
func (c *Client) session(endpoint string, mayBeUnready bool) error {
	connection := c.connections[endpoint]
	connection.ResetConnectBackoff()
	ready, err := c.isServing(connection)
	if err != nil {
		return err
	}
	if !ready && !mayBeUnready {
		return status.Error(codes.Unavailable, "says that it is not ready")
	}
	ctx, began := c.ctx, time.Now()
	if ready {
		steady := time.AfterFunc(steadyAfter, func() {
			c.mu.Lock()
			defer c.mu.Unlock()
			c.chooser.worked(endpoint)
		})
		defer steady.Stop()
	} else {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, unreadyFor)
		defer cancel()
	}
	err = c.watch(ctx, endpoint)
	if errorOf(endpoint, err).Reason == "WATCH_EXPIRED" && time.Since(began) >= steadyAfter {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.chooser.anew(time.Now())
		return nil
	}
	if ctx.Err() != nil {
		return nil
	}
	return err
}

// isServing asks whether a name server is ready. One without a health service always is.
func (c *Client) isServing(connection *grpc.ClientConn) (bool, error) {
	ctx, cancel := context.WithTimeout(c.ctx, c.settings.Timeout)
	defer cancel()
	request := &health.HealthCheckRequest{Service: pb.RouteService_ServiceDesc.ServiceName}
	answer, err := health.NewHealthClient(connection).Check(ctx, request)
	if code := status.Code(err); code == codes.Unimplemented || code == codes.NotFound {
		return true, nil
	}
	return answer.GetStatus() == health.HealthCheckResponse_SERVING, err
}

// watch watches once there are topics, and once more from the beginning if it cannot be resumed.
func (c *Client) watch(ctx context.Context, endpoint string) error {
	var s *stream
	for s == nil {
		c.waitForLookups()
		c.mu.Lock()
		if s = c.newStreamAt(endpoint); s == nil {
			c.connected(endpoint)
		}
		c.mu.Unlock()
		if s == nil {
			select {
			case <-c.wake:
			case <-ctx.Done():
				return ctx.Err()
			}
		}
	}
	err := c.follow(ctx, endpoint, s)
	if s.resume != nil && slices.Contains(fromTheBeginning, errorOf(endpoint, err).Reason) {
		c.mu.Lock()
		c.watched = nil
		c.mu.Unlock()
		return c.watch(ctx, endpoint)
	}
	return err
}

// waitForLookups waits for the lookups that are under way, after which a watch can resume, but not for silent servers.
func (c *Client) waitForLookups() {
	c.mu.Lock()
	underWay := slices.Collect(maps.Values(c.underWay))
	c.mu.Unlock()
	ctx, cancel := context.WithTimeout(c.ctx, time.Second)
	defer cancel()
	for _, one := range underWay {
		_ = one.wait(ctx, "")
	}
}

// lookedUp notes topics that a lookup has brought: the next watch there sends the reasons of later removals. Called
// with the lock.
func (c *Client) lookedUp(endpoint string, header *pb.NamesrvHeader, answers []answer) {
	if c.watched == nil && len(answers) > 0 {
		point := &pb.ResumePoint{Epoch: header.GetEpoch(), Revision: proto.Int64(header.GetRevision())}
		c.watched = &watched{endpoint, additions{}, point}
	}
	w := c.watched
	if w == nil || c.open != nil || w.endpoint != endpoint || w.point.GetEpoch() != header.GetEpoch() ||
		w.point.GetRevision() > header.GetRevision() {
		return
	}
	for _, one := range answers {
		if number := c.kept[one.known.Topic]; number != 0 {
			w.topics[one.known.Topic] = number
		}
	}
}

// newStreamAt begins a watch where the last one ended, if that was here; nil if there are no topics.
func (c *Client) newStreamAt(endpoint string) *stream {
	if c.watched != nil && c.watched.endpoint == endpoint {
		still := additions{}
		for topic, number := range c.watched.topics {
			if c.kept[topic] == number {
				still[topic] = number
			}
		}
		if len(still) > 0 {
			c.open = newStream(still, c.watched.point)
			return c.open
		}
	}
	c.open = nil
	if len(c.kept) > 0 {
		all := additions{}
		for topic, number := range c.kept {
			all[topic] = number
		}
		c.open = newStream(all, nil)
	}
	return c.open
}

type received struct {
	message *pb.WatchTopicRoutesResponse
	err     error
}

// follow reads a watch until it ends, and asks for the topics that are added and dropped.
func (c *Client) follow(ctx context.Context, endpoint string, s *stream) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	call, err := pb.NewRouteServiceClient(c.connections[endpoint]).WatchTopicRoutes(ctx)
	if err != nil {
		return err
	}
	messages := make(chan received)
	go func() {
		for err := error(nil); err == nil; {
			var message *pb.WatchTopicRoutesResponse
			message, err = call.Recv()
			select {
			case messages <- received{message, err}:
			case <-ctx.Done():
				return
			}
		}
	}()
	_ = call.Send(s.opening()) // Recv says why the watch ended if Send cannot
	asked, heard := time.Now(), time.Now()
	for {
		var timer <-chan time.Time
		if s.waiting() {
			timer = time.After(time.Until(heard.Add(c.settings.Timeout)))
		} else if pause := time.Until(asked.Add(updateEvery)); pause > 0 {
			timer = time.After(pause)
		} else {
			c.mu.Lock()
			request := s.update(c.kept)
			c.mu.Unlock()
			if request != nil {
				_ = call.Send(request)
				asked, heard = time.Now(), time.Now()
				continue
			}
		}
		select {
		case got := <-messages:
			if errors.Is(got.err, io.EOF) {
				return status.Error(codes.Unavailable, "ended the watch")
			} else if got.err != nil {
				return got.err
			}
			heard = time.Now()
			if err := c.took(endpoint, s, got.message); err != nil {
				return err
			}
		case <-timer:
			if s.waiting() && time.Since(heard) >= c.settings.Timeout {
				return status.Error(codes.DeadlineExceeded, "did not answer a request of the watch in time")
			}
		case <-c.wake:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// took takes a message of a watch.
func (c *Client) took(endpoint string, s *stream, message *pb.WatchTopicRoutesResponse) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	answers, unusable, err := s.take(message)
	c.watched = nil
	if s.resume != nil {
		c.watched = &watched{endpoint, s.counted, s.resume}
	}
	if err != nil {
		return status.Error(codes.Internal, err.Error())
	}
	for _, problem := range unusable {
		c.settings.Log.Warn("a route is not taken", "error", problem)
	}
	c.offer(answers)
	if s.answered > 0 {
		c.connected(endpoint)
	}
	return nil
}

// connected notes who keeps the routes up to date. Called with the lock.
func (c *Client) connected(endpoint string) {
	c.watching = endpoint
	c.tell(c.cache.setCutOff(false)...)
}
