// Package routes keeps the routes of topics up to date for producers and consumers.
//
// A [Client] looks topics up at a list of name servers, caches their routes, and watches them at one of the name
// servers. It resumes the watch after a break, goes on at another name server, and does not believe an unexplained loss
// of all brokers of a topic for a while. [Dial] is for programs that only look up, with the generated stubs.
//
// Brokers register themselves with the generated stubs: this package does not.
package routes

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	pb "namesrv.dev/protos/namesrv_api/v1"
)

const (
	// maxTopics is the most of one watch.
	maxTopics = 10_000
	// batchTopics is the most of one lookup here; a name server takes 1,000.
	batchTopics  = 500
	maxTopicSize = 400
)

// Settings say how a client behaves. The zero value has the defaults.
type Settings struct {
	Security
	// Timeout is for each answer of a name server; 0 means 3 s.
	Timeout time.Duration
	// Hold is how long an unexplained loss of all brokers is held back; 0 means 120 s, as long as a name server itself
	// keeps silent brokers. Below 0, losses are believed at once.
	Hold time.Duration
	// Log gets losses that are held and name servers that fail; nil means slog.Default().
	Log *slog.Logger
}

// Status is a client at one moment.
type Status struct {
	// Watching is the name server that keeps the routes up to date; empty for none.
	Watching string
	// LastError is how the last watch that failed did.
	LastError error
	Topics    int
	// Held are topics whose loss of all brokers is held back. Alert somebody when there are any.
	Held []string
}

// Client keeps routes. Its methods may be called from any goroutine.
type Client struct {
	settings    Settings
	connections map[string]*grpc.ClientConn
	ctx         context.Context
	cancel      context.CancelFunc
	running     sync.WaitGroup
	// wake tells the watch that topics were added or dropped.
	wake chan struct{}

	mu        sync.Mutex
	cache     *cache
	chooser   *chooser
	kept      additions
	added     uint64
	open      *stream
	watched   *watched
	underWay  map[string]*lookup
	listeners map[*listener]bool
	holdTimer *time.Timer
	watching  string
	lastError error
	closed    bool
}

// Open makes a client of name servers, each a HOST:PORT. It connects at the first use, and succeeds even if nobody
// answers. Close it.
func Open(namesrvs []string, settings Settings) (*Client, error) {
	if err := checkEndpoints(namesrvs); err != nil {
		return nil, err
	}
	options, err := settings.Security.options()
	if err != nil {
		return nil, err
	}
	if settings.Timeout <= 0 {
		settings.Timeout = 3 * time.Second
	}
	if settings.Hold == 0 {
		settings.Hold = 120 * time.Second
	}
	if settings.Log == nil {
		settings.Log = slog.Default()
	}
	c := &Client{
		settings: settings, connections: map[string]*grpc.ClientConn{}, wake: make(chan struct{}, 1),
		cache: newCache(settings.Hold), kept: additions{}, underWay: map[string]*lookup{}, listeners: map[*listener]bool{},
	}
	for _, namesrv := range namesrvs {
		if c.connections[namesrv] != nil {
			return nil, fmt.Errorf("%s is listed twice", namesrv)
		}
		// passthrough: the dialer resolves the name each time, and a proxy of the environment is not asked.
		if c.connections[namesrv], err = grpc.NewClient("passthrough:///"+namesrv, options...); err != nil {
			return nil, err
		}
	}
	c.chooser = newChooser(namesrvs)
	c.ctx, c.cancel = context.WithCancel(context.Background())
	c.running.Go(c.keepWatching)
	return c, nil
}

// Close ends all calls. Callbacks that run may end later.
func (c *Client) Close() {
	c.mu.Lock()
	c.closed = true
	if c.holdTimer != nil {
		c.holdTimer.Stop()
	}
	for one := range c.listeners {
		one.stop()
	}
	c.mu.Unlock()
	c.cancel()
	c.running.Wait()
	for _, connection := range c.connections {
		connection.Close()
	}
}

// Route returns a topic's route, from the cache or from the first name server that answers, and keeps it up to date
// from then on. The route is never nil without an error.
//
// Errors: ErrTopicNotFound, ErrNoAnswer, ErrRefused, ErrBadTopic, ErrTooManyTopics, ErrClosed, those of the context.
func (c *Client) Route(ctx context.Context, topic string) (Known, error) {
	known, err := c.current(topic)
	if known.Route != nil || err != nil {
		return known, err
	}
	looked, err := c.keep(topic)
	if err != nil {
		return known, err
	}
	failed := looked[topic].wait(ctx, topic)
	if known, ok := c.Cached(topic); known.Route != nil {
		return known, nil
	} else if failed == nil && ok {
		return known, notFound(known)
	} else if failed == nil {
		return known, fmt.Errorf("%w: topic %q was forgotten meanwhile", ErrNoAnswer, topic)
	}
	return known, failed
}

// Keep begins to keep topics, without waiting for their routes: one lookup asks for all of them. Errors: ErrBadTopic,
// ErrTooManyTopics, ErrClosed.
func (c *Client) Keep(topics ...string) error {
	_, err := c.keep(topics...)
	return err
}

// Cached returns the route of a topic without asking anybody, and whether anything is known of it.
func (c *Client) Cached(topic string) (Known, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.cache.get(topic)
}

// Forget keeps topics no longer.
func (c *Client) Forget(topics ...string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, topic := range topics {
		delete(c.kept, topic)
		c.cache.forget(topic)
	}
	c.wakeWatch()
}

// OnChange calls back with each change of the kept topics, one at a time, until stop is called or the client is closed.
// While a call runs, further changes of one topic become one.
func (c *Client) OnChange(call func(Change)) (stop func()) {
	one := newListener(call)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return func() {}
	}
	c.listeners[one] = true
	go one.run()
	return func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		delete(c.listeners, one)
		one.stop()
	}
}

// Status returns how the client is.
func (c *Client) Status() Status {
	c.mu.Lock()
	defer c.mu.Unlock()
	return Status{Watching: c.watching, LastError: c.lastError, Topics: len(c.kept), Held: c.cache.held()}
}

// current is what can be told without asking anybody.
func (c *Client) current(topic string) (Known, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return Known{Topic: topic}, ErrClosed
	}
	known, ok := c.cache.get(topic)
	if ok && known.Route == nil && c.open != nil && c.open.hasSent(topic, c.kept[topic]) {
		return known, notFound(known)
	}
	return known, nil
}

func notFound(known Known) error {
	return fmt.Errorf("%w: %s knows no %q", ErrTopicNotFound, known.Namesrv, known.Topic)
}

// keep adds topics to those that are kept, and looks up those that are not being looked up already.
func (c *Client) keep(topics ...string) (map[string]*lookup, error) {
	for _, topic := range topics {
		unprintable := func(r rune) bool { return !unicode.IsPrint(r) }
		if topic == "" || len(topic) > maxTopicSize || !utf8.ValidString(topic) || slices.ContainsFunc([]rune(topic), unprintable) {
			return nil, fmt.Errorf("%w: %.40q", ErrBadTopic, topic)
		}
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.closed {
		return nil, ErrClosed
	}
	begun, looked := newLookup(), map[string]*lookup{}
	for _, topic := range topics {
		if c.kept[topic] == 0 {
			if len(c.kept) >= maxTopics {
				return nil, ErrTooManyTopics
			}
			c.added++
			c.kept[topic] = c.added
			c.wakeWatch()
		}
		if c.underWay[topic] == nil {
			c.underWay[topic] = begun
			begun.topics = append(begun.topics, topic)
		}
		looked[topic] = c.underWay[topic]
	}
	if len(begun.topics) > 0 {
		c.running.Go(func() { c.lookUp(begun) })
	}
	return looked, nil
}

// lookup is a lookup of some topics.
type lookup struct {
	topics []string
	// errs has why there is no answer for a topic. It is read after done.
	errs map[string]error
	done chan struct{}
}

func newLookup() *lookup { return &lookup{errs: map[string]error{}, done: make(chan struct{})} }

func (l *lookup) wait(ctx context.Context, topic string) error {
	select {
	case <-l.done:
		return l.errs[topic]
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (c *Client) lookUp(l *lookup) {
	for topics := range slices.Chunk(l.topics, batchTopics) {
		c.askInTurn(topics, l.errs)
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, topic := range l.topics {
		delete(c.underWay, topic)
	}
	close(l.done)
}

// askInTurn asks the next name server where one fails, or has no answer for a topic.
func (c *Client) askInTurn(topics []string, errs map[string]error) {
	c.mu.Lock()
	endpoints, tried := c.chooser.inOrder(time.Now()), ""
	c.mu.Unlock()
	for _, endpoint := range endpoints {
		left, failed := c.ask(endpoint, topics)
		if failed != nil && !failed.elsewhere() {
			for _, topic := range left {
				errs[topic] = fmt.Errorf("%w: %w", ErrRefused, failed)
			}
			c.Forget(left...) // or the watch would be refused, too
			return
		}
		if failed != nil {
			c.mu.Lock()
			c.chooser.doubt(endpoint, time.Now())
			c.mu.Unlock()
			tried += "; " + failed.Error()
		} else if len(left) > 0 {
			tried += "; " + endpoint + " does not know it yet"
		}
		if topics = left; len(topics) == 0 {
			return
		}
	}
	for _, topic := range topics {
		errs[topic] = fmt.Errorf("%w for topic %q%s", ErrNoAnswer, topic, tried)
	}
	if c.ctx.Err() != nil {
		for _, topic := range topics {
			errs[topic] = ErrClosed
		}
	}
}

// ask asks one name server, in as many calls as the answers need. It returns the topics that have no answer.
func (c *Client) ask(endpoint string, topics []string) (left []string, failed *Error) {
	ctx, cancel := context.WithTimeout(c.ctx, c.settings.Timeout)
	defer cancel()
	stub := pb.NewRouteServiceClient(c.connections[endpoint])
	for len(topics) > 0 {
		response, err := stub.BatchGetTopicRoutes(ctx, &pb.BatchGetTopicRoutesRequest{Topics: topics})
		if err != nil {
			return append(left, topics...), errorOf(endpoint, err)
		}
		left = append(left, response.GetTopicsWarming()...)
		var answers []answer
		for _, named := range response.GetRoutes() {
			if err := checked(named.GetRoute()); err != nil {
				c.settings.Log.Warn("a route is not taken", "topic", named.GetTopic(), "error", err)
				left = append(left, named.GetTopic())
				continue
			}
			answers = append(answers, answer{known: known(named.GetTopic(), named.GetRoute(), response.GetHeader())})
		}
		for _, topic := range response.GetTopicsNotFound() {
			answers = append(answers, answer{known: known(topic, nil, response.GetHeader())})
		}
		c.mu.Lock()
		c.offer(answers)
		c.lookedUp(endpoint, response.GetHeader(), answers)
		c.mu.Unlock()
		if len(response.GetTopicsLeftOut()) >= len(topics) {
			break // no answer has space for any of them
		}
		topics = response.GetTopicsLeftOut()
	}
	return left, nil
}

// offer takes answers in. Called with the lock.
func (c *Client) offer(answers []answer) {
	for _, one := range answers {
		if c.kept[one.known.Topic] != 0 {
			c.tell(c.cache.offer(one, time.Now()))
		}
	}
}

// tell passes changes on to the listeners. Called with the lock.
func (c *Client) tell(changes ...*Change) {
	for _, change := range changes {
		if change == nil {
			continue
		}
		if change.After.Stale == Held {
			c.settings.Log.Warn("a topic lost all brokers and nobody says why: its route stays for now", "topic", change.After.Topic)
			c.armHoldTimer()
		}
		for one := range c.listeners {
			one.put(*change)
		}
	}
}

// armHoldTimer sets a timer if there is none: all holds last equally long, so one that runs ends first.
func (c *Client) armHoldTimer() {
	next := c.cache.nextExpiry()
	if c.holdTimer != nil || next.IsZero() || c.closed {
		return
	}
	c.holdTimer = time.AfterFunc(time.Until(next), func() {
		c.mu.Lock()
		defer c.mu.Unlock()
		c.holdTimer = nil
		c.tell(c.cache.expire(time.Now())...)
		c.armHoldTimer()
	})
}

func (c *Client) wakeWatch() {
	select {
	case c.wake <- struct{}{}:
	default:
	}
}

// listener merges changes by topic while its callback runs.
type listener struct {
	call    func(Change)
	mu      sync.Mutex
	happens *sync.Cond
	waiting map[string]Change
	order   []string
	ended   bool
}

func newListener(call func(Change)) *listener {
	one := &listener{call: call, waiting: map[string]Change{}}
	one.happens = sync.NewCond(&one.mu)
	return one
}

func (l *listener) put(change Change) {
	l.mu.Lock()
	defer l.mu.Unlock()
	topic := change.After.Topic
	if earlier, ok := l.waiting[topic]; ok {
		change.Before, change.Removals = earlier.Before, slices.Concat(earlier.Removals, change.Removals)
	} else {
		l.order = append(l.order, topic)
	}
	l.waiting[topic] = change
	l.happens.Signal()
}

func (l *listener) stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.ended = true
	l.happens.Signal()
}

func (l *listener) run() {
	for {
		l.mu.Lock()
		for len(l.order) == 0 && !l.ended {
			l.happens.Wait()
		}
		if l.ended {
			l.mu.Unlock()
			return
		}
		change := l.waiting[l.order[0]]
		delete(l.waiting, l.order[0])
		l.order = l.order[1:]
		l.mu.Unlock()
		if change.Before.Stale != change.After.Stale || !proto.Equal(change.Before.Route, change.After.Route) {
			l.call(change)
		}
	}
}
