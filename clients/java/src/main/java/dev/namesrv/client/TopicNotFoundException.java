package dev.namesrv.client;

import io.grpc.Status;

/** The answer of a name server that there is no such topic. */
public final class TopicNotFoundException extends RouteException {
  private static final long serialVersionUID = 1;

  TopicNotFoundException(String topic, String namesrv) {
    super(Status.Code.NOT_FOUND, "TOPIC_NOT_FOUND", "name server " + namesrv + " has no topic '" + topic + "'");
  }
}
