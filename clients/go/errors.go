package routes

import (
	"errors"
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
)

var (
	// ErrTopicNotFound: a name server that answered knows no such topic.
	ErrTopicNotFound = errors.New("no such topic")
	// ErrNoAnswer: no name server answered, or none knows the topic yet.
	ErrNoAnswer = errors.New("no name server answered")
	// ErrRefused: a name server refused the request itself. Asking another one would not help.
	ErrRefused = errors.New("refused")
	// ErrBadTopic: the topic's name breaks the rules. Nobody was asked.
	ErrBadTopic = errors.New("the topic's name is empty, over 400 bytes or not printable")
	// ErrTooManyTopics: the client keeps as many topics as a watch may have. Forget one.
	ErrTooManyTopics = errors.New("10,000 topics are kept already")
	// ErrNoQueue: the topic has a route, but no queue to send to.
	ErrNoQueue = errors.New("no writable queue on a group with a master")
	// ErrClosed: the client is closed.
	ErrClosed = errors.New("the client is closed")
)

// domain of the name servers' error reasons.
const domain = "namesrv.dev"

// Error is a call to a name server that failed.
type Error struct {
	Namesrv string
	Code    codes.Code
	// Reason is one of the contract's, such as TOPIC_NOT_FOUND; empty for errors of libraries and proxies.
	Reason   string
	Metadata map[string]string
	Message  string
	// RetryAfter is how long the name server wants to be left alone; nil if it did not say.
	RetryAfter *time.Duration
}

func (e *Error) Error() string {
	if e.Reason == "" {
		return fmt.Sprintf("%s: %s: %s", e.Namesrv, e.Code, e.Message)
	}
	return fmt.Sprintf("%s: %s %s: %s", e.Namesrv, e.Code, e.Reason, e.Message)
}

// errorOf reads the details of a failed call.
func errorOf(namesrv string, err error) *Error {
	failure := status.Convert(err)
	read := &Error{Namesrv: namesrv, Code: failure.Code(), Message: failure.Message()}
	for _, detail := range failure.Details() {
		switch detail := detail.(type) {
		case *errdetails.ErrorInfo:
			if detail.GetDomain() == domain {
				read.Reason, read.Metadata = detail.GetReason(), detail.GetMetadata()
			}
		case *errdetails.RetryInfo:
			wanted := detail.GetRetryDelay().AsDuration()
			read.RetryAfter = &wanted
		}
	}
	return read
}

// elsewhere says whether another name server may answer. UNIMPLEMENTED means that another service listens there.
func (e *Error) elsewhere() bool {
	switch e.Code {
	case codes.Unavailable, codes.DeadlineExceeded, codes.ResourceExhausted, codes.Unimplemented, codes.Internal,
		codes.Unknown, codes.Canceled:
		return true
	}
	return false
}
