package dev.namesrv.client;

import dev.namesrv.api.v1.NamesrvHeader;
import dev.namesrv.api.v1.ResumePoint;
import dev.namesrv.api.v1.TopicRouteChange;
import dev.namesrv.api.v1.WatchTopicRoutesRequest;
import dev.namesrv.api.v1.WatchTopicRoutesResponse;
import dev.namesrv.client.RouteCache.Answer;
import java.net.ProtocolException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;

/**
 * The messages of one watch: requests out, answers in. Pure; its owner sends and receives.
 *
 * <p>At most one request is unanswered. Topics that are added until then are gathered into the next request.
 */
final class WatchStream {
  private final Set<String> sent = new HashSet<>();
  private final Set<String> sinceBookmark = new HashSet<>();
  private Map<String, Long> asked;
  private Map<String, Long> counted;
  private long requests = 1;
  private long answered;
  private ResumePoint resume;
  private NamesrvHeader last = NamesrvHeader.getDefaultInstance();

  /**
   * @param topics the topics of the first request with the numbers of their additions; at least one
   * @param resume where an earlier watch of these topics at this name server ended; null if there was none
   */
  WatchStream(Map<String, Long> topics, ResumePoint resume) {
    this.asked = Map.copyOf(topics);
    this.resume = resume;
    this.counted = resume == null ? Map.of() : asked;
    if (resume != null) {
      sinceBookmark.addAll(topics.keySet());
      last = NamesrvHeader.newBuilder().setEpoch(resume.getEpoch()).setRevision(resume.getRevision()).build();
    }
  }

  /** Where another watch of the counted topics can resume; null if it must begin anew. */
  ResumePoint resumePoint() {
    return resume;
  }

  /** The topics whose routes have been received up to the resume point. */
  Map<String, Long> counted() {
    return counted;
  }

  /** Whether the first bookmark has come: the current routes have been received. */
  boolean stands() {
    return answered > 0;
  }

  /** Whether a request has no bookmark yet that counts it. */
  boolean isWaiting() {
    return answered < requests;
  }

  /** Whether the name server has sent this topic, up to a bookmark. A warming name server sends no unknown topics. */
  boolean hasSent(String topic, long addition) {
    return sent.contains(topic) && Long.valueOf(addition).equals(asked.get(topic));
  }

  WatchTopicRoutesRequest opening() {
    var request = WatchTopicRoutesRequest.newBuilder().addAllTopics(new TreeSet<>(asked.keySet()));
    if (resume != null) {
      request.setResumeAfter(resume);
    }
    return request.build();
  }

  /**
   * Returns the next request; null if these topics are watched, or a request has no answer yet.
   *
   * <p>A request either removes or adds: both together could be larger than a name server accepts.
   */
  WatchTopicRoutesRequest update(Map<String, Long> topics) {
    if (isWaiting()) {
      return null;
    }
    Set<String> removed = missing(asked, topics);
    Set<String> added = missing(topics, asked);
    if (removed.isEmpty() && added.isEmpty()) {
      return null;
    }
    requests++;
    asked = new HashMap<>(asked);
    var request = WatchTopicRoutesRequest.newBuilder();
    if (removed.isEmpty()) {
      added.forEach(topic -> asked.put(topic, topics.get(topic)));
      return request.addAllTopics(added).build();
    }
    asked.keySet().removeAll(removed);
    sent.removeAll(removed);
    sinceBookmark.removeAll(removed);
    return request.addAllRemovedTopics(removed).build();
  }

  /**
   * Takes a message in. Returns its answers about the watched topics, in order.
   *
   * @throws ProtocolException the stream breaks the contract: the watch must begin anew
   */
  List<Answer> take(WatchTopicRoutesResponse response) throws ProtocolException {
    NamesrvHeader header = response.getHeader();
    check(header);
    List<Answer> answers = new ArrayList<>();
    for (TopicRouteChange change : response.getChangesList()) {
      if (asked.containsKey(change.getTopic())) {
        var route = change.hasRoute() ? change.getRoute() : null;
        answers.add(Answer.of(change.getTopic(), route, header, change.getRemovalsList()));
        sinceBookmark.add(change.getTopic());
      }
    }
    if (response.getBookmark()) {
      count(response.getRequestCount());
      resume = ResumePoint.newBuilder().setEpoch(header.getEpoch()).setRevision(header.getRevision()).build();
      sent.addAll(sinceBookmark);
      sinceBookmark.clear();
    }
    return answers;
  }

  private void count(long counting) throws ProtocolException {
    if (counting < Math.max(1, answered) || counting > requests) {
      throw broken("a bookmark counts " + counting + " requests of " + requests);
    }
    answered = counting;
    if (!isWaiting()) {
      counted = asked;
    }
  }

  private void check(NamesrvHeader header) throws ProtocolException {
    boolean isSame = last.getEpoch().equals(header.getEpoch());
    boolean isBack = isSame ? header.getRevision() < last.getRevision() : !last.getEpoch().isEmpty();
    if (isBack) {
      throw broken("the watch went from " + last.getEpoch() + " " + last.getRevision() + " back to " + header);
    }
    last = header;
  }

  private ProtocolException broken(String problem) {
    resume = null;
    return new ProtocolException(problem);
  }

  /** Returns the topics of one map that the other does not have with the same addition. */
  private static Set<String> missing(Map<String, Long> topics, Map<String, Long> others) {
    Set<String> found = new TreeSet<>(topics.keySet());
    found.removeIf(topic -> topics.get(topic).equals(others.get(topic)));
    return found;
  }
}
