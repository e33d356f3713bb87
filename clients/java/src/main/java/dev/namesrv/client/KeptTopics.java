package dev.namesrv.client;

import dev.namesrv.api.v1.ResumePoint;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

/** The topics that a client keeps, and the point up to which a watch has reported them. Belongs to the event loop. */
final class KeptTopics {
  /** The most topics of one watch, by the contract. */
  private static final int MAX_TOPICS = 10_000;

  /** Where the last watch ended or the open one stands: at which name server, and with which topics. */
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
    if (additions.containsKey(topic)) {
      return false;
    }
    if (additions.size() >= MAX_TOPICS) {
      throw new IllegalStateException(MAX_TOPICS + " topics are kept already: forget one before '" + topic + "'");
    }
    additions.put(topic, ++lastAddition);
    return true;
  }

  /** Whether the open watch has sent a topic's route, or the lack of one, and would send each change of it. */
  boolean isCurrent(String topic) {
    Long addition = additions.get(topic);
    return addition != null && stream != null && stream.hasSent(topic, addition);
  }

  /** Returns where a watch at a name server can resume; null if it has to begin anew. */
  WatchedUpTo resumeAt(Endpoint endpoint) {
    if (watched == null || !watched.endpoint().equals(endpoint)) {
      return null;
    }
    var topics = new HashMap<>(watched.topics());
    topics.entrySet().retainAll(additions.entrySet());
    return topics.isEmpty() ? null : new WatchedUpTo(endpoint, topics, watched.point());
  }
}
