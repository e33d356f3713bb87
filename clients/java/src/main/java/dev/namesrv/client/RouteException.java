package dev.namesrv.client;

import com.google.protobuf.Any;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.ErrorInfo;
import com.google.rpc.RetryInfo;
import io.grpc.Status;
import io.grpc.protobuf.StatusProto;
import java.time.Duration;
import java.util.List;
import java.util.Optional;
import java.util.Set;

/** The failure of a lookup: the error of a name server, or the reason why no name server answered. */
public class RouteException extends RuntimeException {
  private static final long serialVersionUID = 1;

  private static final String DOMAIN = "namesrv.dev";

  /** Codes that say something about the name server, and not about the request. */
  private static final Set<String> ELSEWHERE =
      Set.of(
          "UNAVAILABLE", "DEADLINE_EXCEEDED", "CANCELLED", "RESOURCE_EXHAUSTED", "UNIMPLEMENTED", "INTERNAL",
          "UNKNOWN");

  private final Status.Code code;
  private final String reason;
  private final Duration retryAfter;

  RouteException(Status.Code code, String reason, String message) {
    this(code, reason, message, null, null);
  }

  private RouteException(Status.Code code, String reason, String message, Duration retryAfter, Throwable cause) {
    super(code + (reason.isEmpty() ? "" : " " + reason) + ": " + message, cause);
    this.code = code;
    this.reason = reason;
    this.retryAfter = retryAfter;
  }

  /** Reads the failure of a call. Details that are missing, unreadable or of another domain are left out. */
  static RouteException of(Object namesrv, Throwable failure) {
    Status status = Status.fromThrowable(failure);
    String reason = "";
    Duration retryAfter = null;
    for (Any detail : detailsOf(failure)) {
      try {
        if (detail.is(ErrorInfo.class) && detail.unpack(ErrorInfo.class).getDomain().equals(DOMAIN)) {
          reason = detail.unpack(ErrorInfo.class).getReason();
        } else if (detail.is(RetryInfo.class)) {
          var delay = detail.unpack(RetryInfo.class).getRetryDelay();
          retryAfter = Duration.ofSeconds(delay.getSeconds(), delay.getNanos());
        }
      } catch (InvalidProtocolBufferException unreadable) {
        // The detail of something between here and the name server: the code decides alone.
      }
    }
    String text = namesrv + ": " + status.getDescription();
    return new RouteException(status.getCode(), reason, text, retryAfter, failure);
  }

  private static List<Any> detailsOf(Throwable failure) {
    try {
      return StatusProto.fromThrowable(failure).getDetailsList();
    } catch (IllegalArgumentException mismatch) { // a proxy changed the code
      return List.of();
    }
  }

  /** The gRPC code. */
  public Status.Code code() {
    return code;
  }

  /** The reason by the name server's table, such as REGISTRY_WARMING; empty if the name server sent none. */
  public String reason() {
    return reason;
  }

  /** When the name server wants to be asked again, if it says so. */
  public Optional<Duration> retryAfter() {
    return Optional.ofNullable(retryAfter);
  }

  /** Whether another name server may answer the same request. */
  boolean isElsewhere() {
    return ELSEWHERE.contains(code.name());
  }
}
