package routes

import (
	"math"
	"math/rand/v2"
	"slices"
	"time"
)

const (
	firstBackoff = 200 * time.Millisecond
	maxBackoff   = 10 * time.Second
	backoffGrows = 1.6
	// maxRetryAfter bounds the time for which a name server can ask to be left alone.
	maxRetryAfter = 60 * time.Second
	// doubtFor is how long a name server that let a lookup wait in vain is asked after the others.
	doubtFor = 30 * time.Second
)

// chooser stays with one name server while that works, goes to the next at once, and waits only after a whole round.
// Its owner locks it.
type chooser struct {
	order     []string
	current   int
	failures  int
	notBefore map[string]time.Time
	doubted   map[string]time.Time
}

func newChooser(endpoints []string) *chooser {
	order := slices.Clone(endpoints)
	rand.Shuffle(len(order), func(i, j int) { order[i], order[j] = order[j], order[i] })
	return &chooser{order: order, notBefore: map[string]time.Time{}, doubted: map[string]time.Time{}}
}

// at is the name server to stay with, or to try next.
func (c *chooser) at() string { return c.order[c.current] }

// allFailed says whether each name server has failed since one last worked.
func (c *chooser) allFailed() bool { return c.failures >= len(c.order) }

// inOrder has the current name server first, and doubted ones last.
func (c *chooser) inOrder(now time.Time) []string {
	order := slices.Concat(c.order[c.current:], c.order[:c.current])
	doubted := func(endpoint string) int {
		if c.doubted[endpoint].After(now) {
			return 1
		}
		return 0
	}
	slices.SortStableFunc(order, func(a, b string) int { return doubted(a) - doubted(b) })
	return order
}

// worked: a name server has answered for a while.
func (c *chooser) worked(endpoint string) {
	c.failures = 0
	delete(c.doubted, endpoint)
}

func (c *chooser) doubt(endpoint string, now time.Time) { c.doubted[endpoint] = now.Add(doubtFor) }

// failed leaves the current name server for the next one that does not want to be left alone.
func (c *chooser) failed(retryAfter *time.Duration, now time.Time) {
	c.failures++
	if retryAfter != nil {
		c.notBefore[c.at()] = now.Add(min(*retryAfter, maxRetryAfter))
	}
	next := c.current
	for step := range len(c.order) {
		at := (c.current + 1 + step) % len(c.order)
		if step == 0 || c.wait(at, now) < c.wait(next, now) {
			next = at
		}
	}
	c.current = next
}

// anew goes to any name server, the current one included, unless that wants to be left alone.
func (c *chooser) anew(now time.Time) {
	var free []int
	for at := range c.order {
		if c.wait(at, now) == 0 {
			free = append(free, at)
		}
	}
	if len(free) > 0 {
		c.current = free[rand.IntN(len(free))]
	}
}

// delay is how long to wait before the current name server is tried.
func (c *chooser) delay(now time.Time) time.Duration {
	wanted := c.wait(c.current, now)
	if !c.allFailed() {
		return wanted
	}
	rounds := float64(c.failures - len(c.order))
	backoff := min(float64(firstBackoff)*math.Pow(backoffGrows, rounds), float64(maxBackoff))
	return max(wanted, time.Duration(backoff*(0.8+0.4*rand.Float64())))
}

func (c *chooser) wait(at int, now time.Time) time.Duration {
	return max(0, c.notBefore[c.order[at]].Sub(now))
}
