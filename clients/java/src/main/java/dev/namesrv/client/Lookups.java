package dev.namesrv.client;

import com.google.common.util.concurrent.FutureCallback;
import com.google.common.util.concurrent.Futures;
import dev.namesrv.api.v1.BatchGetTopicRoutesRequest;
import dev.namesrv.api.v1.BatchGetTopicRoutesResponse;
import dev.namesrv.api.v1.RouteServiceGrpc;
import dev.namesrv.client.RouteCache.Answer;
import io.grpc.CallOptions;
import io.grpc.ManagedChannel;
import io.grpc.Status;
import io.grpc.stub.ClientCalls;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collection;
import java.util.Deque;
import java.util.HashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/**
 * The lookups of topics that the cache does not know: each topic is asked for at most once at a time.
 *
 * <p>The first call goes to all name servers as one target, as the service config says. Then each name server is called
 * directly, in turn, until every topic has an answer: that reaches those that are not ready, if no name server is.
 * Belongs to the client's event loop.
 */
final class Lookups {
  /** Most topics of one call; a name server takes 1,000. */
  private static final int BATCH_TOPICS = 500;

  private final Connections connections;
  private final List<Endpoint> endpoints;
  private final Consumer<List<Answer>> sink;
  private final Executor loop;
  private final long timeoutMillis;
  private final Map<String, CompletableFuture<Void>> underWay = new HashMap<>();
  private boolean isClosed;

  Lookups(
      Connections connections, List<Endpoint> all, Consumer<List<Answer>> sink, Executor loop, long timeoutMillis) {
    this.connections = connections;
    this.endpoints = all;
    this.sink = sink;
    this.loop = loop;
    this.timeoutMillis = timeoutMillis;
  }

  /** Asks for topics. The future of each topic completes once the sink has an answer, or with a RouteException. */
  Map<String, CompletableFuture<Void>> lookUp(Collection<String> topics) {
    if (isClosed) {
      throw new IllegalStateException("the client is closed");
    }
    Map<String, CompletableFuture<Void>> results = new HashMap<>();
    Set<String> batch = new LinkedHashSet<>();
    for (String topic : topics) {
      if (!underWay.containsKey(topic)) {
        underWay.put(topic, new CompletableFuture<>());
        batch.add(topic);
      }
      results.put(topic, underWay.get(topic));
      if (batch.size() == BATCH_TOPICS) {
        new Lookup(batch).call(connections.toAll());
        batch = new LinkedHashSet<>();
      }
    }
    if (!batch.isEmpty()) {
      new Lookup(batch).call(connections.toAll());
    }
    return results;
  }

  int size() {
    return underWay.size();
  }

  /** Drops the answer of a lookup that is under way. */
  void forget(String topic) {
    CompletableFuture<Void> result = underWay.remove(topic);
    if (result != null) {
      result.completeExceptionally(new RouteException(Status.Code.CANCELLED, "", "the topic is forgotten"));
    }
  }

  void close() {
    var closed = new RouteException(Status.Code.CANCELLED, "", "the client is closed");
    List.copyOf(underWay.values()).forEach(result -> result.completeExceptionally(closed));
    underWay.clear();
    isClosed = true;
  }

  /** One batch of topics on its way from name server to name server. */
  private final class Lookup implements FutureCallback<BatchGetTopicRoutesResponse> {
    private final Set<String> topics;
    private final Deque<Endpoint> left = new ArrayDeque<>(endpoints);
    private Endpoint asked;
    private RouteException problem;

    private Lookup(Set<String> topics) {
      this.topics = topics;
    }

    private void call(ManagedChannel channel) {
      var request = BatchGetTopicRoutesRequest.newBuilder().addAllTopics(topics).build();
      // Without the wait, a call fails at once if no name server is ready.
      var options = CallOptions.DEFAULT.withoutWaitForReady().withDeadlineAfter(timeoutMillis, TimeUnit.MILLISECONDS);
      var call = channel.newCall(RouteServiceGrpc.getBatchGetTopicRoutesMethod(), options);
      Futures.addCallback(ClientCalls.futureUnaryCall(call, request), this, loop);
    }

    @Override
    public void onSuccess(BatchGetTopicRoutesResponse response) {
      boolean isPartial = response.getTopicsLeftOutCount() > 0 && response.getTopicsLeftOutCount() < topics.size();
      var header = response.getHeader();
      List<Answer> answers = new ArrayList<>();
      for (var named : response.getRoutesList()) {
        answers.add(Answer.of(named.getTopic(), named.getRoute(), header, List.of()));
      }
      response.getTopicsNotFoundList().forEach(topic -> answers.add(Answer.of(topic, null, header, List.of())));
      answers.removeIf(answer -> !underWay.containsKey(answer.topic()));
      var results = answers.stream().map(answer -> underWay.remove(answer.topic())).toList();
      sink.accept(answers);
      results.forEach(result -> result.complete(null));
      String text = header.getNamesrvName() + " does not know the topic yet";
      problem = new RouteException(Status.Code.UNAVAILABLE, "REGISTRY_WARMING", text);
      goOn(isPartial);
    }

    @Override
    public void onFailure(Throwable failure) {
      problem = RouteException.of(asked == null ? endpoints : asked, failure);
      if (problem.isElsewhere()) {
        goOn(false);
      } else {
        settleAll();
      }
    }

    /** Asks for the topics that are left: here if the answer left them out, else at the next name server. */
    private void goOn(boolean here) {
      topics.retainAll(underWay.keySet());
      if (topics.isEmpty()) {
        return;
      }
      if (here) {
        call(asked == null ? connections.toAll() : connections.to(asked));
        return;
      }
      asked = left.poll();
      if (asked == null) {
        settleAll();
      } else {
        call(connections.to(asked));
      }
    }

    private void settleAll() {
      for (String topic : topics) {
        CompletableFuture<Void> result = underWay.remove(topic);
        if (result != null) {
          result.completeExceptionally(problem);
        }
      }
    }
  }
}
