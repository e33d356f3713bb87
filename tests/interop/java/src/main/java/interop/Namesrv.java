package interop;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.util.JsonFormat;
import com.google.rpc.ErrorInfo;
import io.grpc.Grpc;
import io.grpc.InsecureChannelCredentials;
import io.grpc.ManagedChannel;
import io.grpc.Status;
import io.grpc.protobuf.StatusProto;
import java.util.concurrent.TimeUnit;

/** What every client of a name server needs: a connection, errors by their reason, messages as JSON. */
final class Namesrv {
  /** Protobuf's own JSON form on one line: names as in the contract, 64-bit numbers as text, absent left out. */
  static final JsonFormat.Printer JSON =
      JsonFormat.printer()
          .preservingProtoFieldNames()
          .omittingInsignificantWhitespace()
          .alwaysPrintFieldsWithNoPresence();

  private static final String ERROR_DOMAIN = "namesrv.dev";

  private Namesrv() {}

  /** Opens a connection. gRPC's Java library pings every 10 s at most. */
  static ManagedChannel connect(String endpoint) {
    return Grpc.newChannelBuilder(endpoint, InsecureChannelCredentials.create())
        .keepAliveTime(10, TimeUnit.SECONDS)
        .keepAliveTimeout(5, TimeUnit.SECONDS)
        .build();
  }

  /** Says which code, which reason of the name server's table, and what a person should read. */
  static String describe(Exception failure) throws InvalidProtocolBufferException {
    Status status = Status.fromThrowable(failure);
    String code = status.getCode().name();
    String message = status.getDescription();
    for (Any detail : StatusProto.fromThrowable(failure).getDetailsList()) {
      if (detail.is(ErrorInfo.class)) {
        ErrorInfo info = detail.unpack(ErrorInfo.class);
        if (info.getDomain().equals(ERROR_DOMAIN)) {
          return code + " " + info.getReason() + ": " + message;
        }
      }
    }
    return code + ": " + message;
  }
}
