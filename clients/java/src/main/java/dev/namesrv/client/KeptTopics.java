package dev.namesrv.client;

import dev.namesrv.api.v1.ResumePoint;
import dev.namesrv.client.RouteCache.Answer;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/** The topics that a client keeps, and the point up to which a watch has reported them. Belongs to the event loop. */
final class KeptTopics {
  /** The most topics of one watch, by the contract. */
  static final int MAX_TOPICS = 10_000;

  /**
   * Where the last watch ended or the open one stands. Before the first watch, what lookups have brought: then the
   * endpoint is null, because the first one answered, and a watch elsewhere is told that its epoch differs.
   */
  record WatchedUpTo(Endpoint endpoint, Map<String, Long> topics, ResumePoint point) {}

  /** Each topic with the number of its addition: a topic that is dropped and added again begins anew. */
  final Map<String, Long> additions = new ConcurrentHashMap<>();

  /** The open watch; null if there is none. */
  WatchStream stream;

  /** Null if a watch has to begin anew. */
  WatchedUpTo watched;

  private long lastAddition;

  /** Keeps a topic. Reports whether it is new. */
  boolean add(String topic) {
    return additions.putIfAbsent(topic, ++lastAddition) == null;
  }

  /** Notes a topic that a lookup has brought, so that the next watch sends the reasons of later removals. */
  void lookedUp(Answer answer) {
    if (watched == null) {
      watched = new WatchedUpTo(null, new HashMap<>(), answer.point());
    }
    boolean isSame = watched.endpoint() == null && watched.point().getEpoch().equals(answer.epoch());
    if (stream == null && isSame && watched.point().getRevision() <= answer.revision()) {
      watched.topics().put(answer.topic(), additions.get(answer.topic()));
    }
  }

  /** Whether the open watch has sent a topic's route, or the lack of one, and would send each change of it. */
  boolean isCurrent(String topic) {
    Long addition = additions.get(topic);
    return addition != null && stream != null && stream.hasSent(topic, addition);
  }

  /** Returns where a watch at a name server can resume; null if it has to begin anew. */
  WatchedUpTo resumeAt(Endpoint endpoint) {
    if (watched == null || (watched.endpoint() != null && !watched.endpoint().equals(endpoint))) {
      return null;
    }
    var topics = new HashMap<>(watched.topics());
    topics.entrySet().retainAll(additions.entrySet());
    return topics.isEmpty() ? null : new WatchedUpTo(endpoint, topics, watched.point());
  }
}
