// Package namesrv has what every client of a name server needs: a connection, errors by their reason, messages as JSON.
package namesrv

import (
	"encoding/json"
	"fmt"
	"time"

	"google.golang.org/genproto/googleapis/rpc/errdetails"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/keepalive"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
)

const errorDomain = "namesrv.dev"

// Connect opens a connection. gRPC's Go library pings every 10 s at most.
func Connect(endpoint string) (*grpc.ClientConn, error) {
	return grpc.NewClient(
		endpoint,
		grpc.WithTransportCredentials(insecure.NewCredentials()),
		grpc.WithKeepaliveParams(keepalive.ClientParameters{Time: 10 * time.Second, Timeout: 5 * time.Second}),
	)
}

// Describe says which code, which reason of the name server's table, and what a person should read.
func Describe(err error) string {
	failure := status.Convert(err)
	for _, detail := range failure.Details() {
		if info, ok := detail.(*errdetails.ErrorInfo); ok && info.GetDomain() == errorDomain {
			return fmt.Sprintf("%s %s: %s", failure.Code(), info.GetReason(), failure.Message())
		}
	}
	return fmt.Sprintf("%s: %s", failure.Code(), failure.Message())
}

// JSON is protobuf's own JSON form of a message: names as in the contract, what is absent left out.
//
// 64-bit numbers are text, which is right: JSON's numbers are exact only up to 2^53.
func JSON(message proto.Message) (json.RawMessage, error) {
	return protojson.MarshalOptions{UseProtoNames: true, EmitDefaultValues: true}.Marshal(message)
}
