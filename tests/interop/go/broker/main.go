// Command broker registers a broker with a name server, as a broker without an agent does, and stays until it is ended.
//
// Usage: broker HOST:PORT BROKER-NAME BROKER-ADDR TOPIC...
//
// It prints one line of JSON for each answer and each event of its channel: {"event": ...}, {"registered": ...},
// {"data_version_queried": ...}, {"unregistered": ...}, each with the message. SIGTERM or an interrupt unregisters the
// broker. It exits 1 with one line on standard error if a call or the channel fails: whoever started it starts it again.
package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/signal"
	"syscall"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"clients/namesrv"
	namesrvapi "namesrv.dev/protos/namesrv_api/v1"
)

const (
	clusterName  = "DefaultCluster"
	masterID     = 0
	queues       = 4
	readAndWrite = 6
	callTimeout  = 6 * time.Second
	queryPeriod  = 30 * time.Second
)

func main() {
	if len(os.Args) < 5 {
		fmt.Fprintln(os.Stderr, "usage: broker HOST:PORT BROKER-NAME BROKER-ADDR TOPIC...")
		os.Exit(2)
	}
	ended, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ended, os.Args[1], os.Args[2], os.Args[3], os.Args[4:]); err != nil {
		fmt.Fprintln(os.Stderr, namesrv.Describe(err))
		os.Exit(1)
	}
}

// run keeps the broker registered until the context is done. The channel outlives that: its end would remove the
// broker, too, but tell those who watch that it was lost.
func run(ended context.Context, endpoint, name, addr string, topics []string) error {
	connection, err := namesrv.Connect(endpoint)
	if err != nil {
		return err
	}
	defer connection.Close()
	client := namesrvapi.NewRegistrationServiceClient(connection)
	request := &namesrvapi.OpenChannelRequest{Holder: "go-broker " + name}
	channel, err := client.OpenChannel(context.Background(), request)
	if err != nil {
		return err
	}
	opened, err := next(channel)
	if err != nil {
		return err
	}
	broker := newBroker(client, name, addr, topics)
	broker.channelID = opened.GetOpened().GetChannelId()
	if err := broker.register(); err != nil {
		return err
	}
	return broker.stay(ended, channel)
}

// next waits for a channel's next event, and prints it.
func next(channel grpc.ServerStreamingClient[namesrvapi.OpenChannelResponse]) (*namesrvapi.OpenChannelResponse, error) {
	event, err := channel.Recv()
	if err != nil {
		return nil, err
	}
	return event, report("event", event)
}

type broker struct {
	client     namesrvapi.RegistrationServiceClient
	identity   *namesrvapi.BrokerIdentity
	version    *namesrvapi.DataVersion
	topics     []*namesrvapi.TopicConfig
	channelID  string
	generation int64 // of the last registration
}

func newBroker(client namesrvapi.RegistrationServiceClient, name, addr string, topics []string) *broker {
	made := &broker{
		client: client,
		identity: &namesrvapi.BrokerIdentity{
			ClusterName: clusterName, BrokerName: name, BrokerId: proto.Int64(masterID), BrokerAddr: addr,
		},
		version: &namesrvapi.DataVersion{
			TimestampMillis: proto.Int64(time.Now().UnixMilli()), Counter: proto.Int64(1),
		},
	}
	for _, topic := range topics {
		made.topics = append(made.topics, &namesrvapi.TopicConfig{
			Topic:          topic,
			ReadQueueNums:  proto.Int32(queues),
			WriteQueueNums: proto.Int32(queues),
			Perm:           proto.Int32(readAndWrite),
		})
	}
	return made
}

// stay asks now and then whether the name server still holds what was registered, and reads the channel all the time,
// until the context is done.
func (b *broker) stay(ended context.Context, channel grpc.ServerStreamingClient[namesrvapi.OpenChannelResponse]) error {
	events, failed := make(chan *namesrvapi.OpenChannelResponse, 1), make(chan error, 1)
	go func() {
		for {
			event, err := next(channel)
			if err != nil {
				failed <- err
				return
			}
			events <- event
		}
	}()
	for due := time.After(0); ; {
		select {
		case <-ended.Done():
			return b.unregister()
		case err := <-failed:
			return err
		case event := <-events:
			// Other events do not concern a broker without slaves.
			if event.GetOrderTopicConfigChanged() != nil {
				if err := b.register(); err != nil {
					return err
				}
			}
		case <-due:
			if err := b.query(); err != nil {
				return err
			}
			due = time.After(queryPeriod)
		}
	}
}

func (b *broker) register() error {
	answer, err := call("registered", b.client.RegisterBroker, &namesrvapi.RegisterBrokerRequest{
		Broker: b.identity, DataVersion: b.version, TopicConfigs: b.topics, ChannelId: proto.String(b.channelID),
	})
	b.generation = answer.GetGeneration()
	return err
}

func (b *broker) query() error {
	answer, err := call("data_version_queried", b.client.QueryDataVersion, &namesrvapi.QueryDataVersionRequest{
		Broker: b.identity, DataVersion: b.version,
	})
	if err == nil && answer.GetChanged() {
		err = b.register()
	}
	return err
}

func (b *broker) unregister() error {
	_, err := call("unregistered", b.client.UnregisterBroker, &namesrvapi.UnregisterBrokerRequest{
		Broker: b.identity, Generation: proto.Int64(b.generation),
	})
	return err
}

// call makes a call within its deadline, and prints the answer under a name.
func call[Request any, Answer proto.Message](
	name string, method func(context.Context, Request, ...grpc.CallOption) (Answer, error), request Request,
) (Answer, error) {
	ctx, cancel := context.WithTimeout(context.Background(), callTimeout)
	defer cancel()
	answer, err := method(ctx, request)
	if err != nil {
		return answer, err
	}
	return answer, report(name, answer)
}

func report(name string, message proto.Message) error {
	text, err := namesrv.JSON(message)
	if err != nil {
		return err
	}
	return json.NewEncoder(os.Stdout).Encode(map[string]json.RawMessage{name: text})
}
