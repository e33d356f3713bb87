package dev.namesrv.client;

import com.google.common.util.concurrent.FutureCallback;
import com.google.common.util.concurrent.Futures;
import dev.namesrv.api.v1.RouteServiceGrpc;
import dev.namesrv.api.v1.WatchTopicRoutesRequest;
import dev.namesrv.api.v1.WatchTopicRoutesResponse;
import dev.namesrv.client.KeptTopics.WatchedUpTo;
import dev.namesrv.client.RouteCache.Answer;
import io.grpc.Status;
import io.grpc.health.v1.HealthCheckRequest;
import io.grpc.health.v1.HealthCheckResponse;
import io.grpc.health.v1.HealthCheckResponse.ServingStatus;
import io.grpc.health.v1.HealthGrpc;
import io.grpc.stub.ClientCallStreamObserver;
import io.grpc.stub.ClientResponseObserver;
import java.net.ProtocolException;
import java.time.Duration;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.Consumer;

/**
 * The keeper of the cache: one session after the other, each with one name server for as long as that works.
 *
 * <p>Belongs to the client's event loop, except for its getters.
 */
final class RouteKeeper {
  /** A session that lasts so long counts as a success. With a name server that is not ready, it ends then. */
  private static final long STEADY_MILLIS = 5_000;

  /** Shortest time from one request of a watch to the next: many additions cost few requests. */
  private static final long UPDATE_MILLIS = 50;

  private static final Set<Status.Code> HAS_NO_HEALTH = Set.of(Status.Code.UNIMPLEMENTED, Status.Code.NOT_FOUND);

  /** Reasons why a watch cannot be resumed. It is opened again at once, without a resume point. */
  private static final Set<String> FROM_THE_BEGINNING = Set.of("EPOCH_CHANGED", "REVISION_COMPACTED");

  private final Connections connections;
  private final EndpointChooser chooser;
  private final KeptTopics topics;
  private final Consumer<Answer> sink;
  private final Consumer<Boolean> cutOff;
  private final EventLoop loop;
  private final long timeoutMillis;
  private Session session;
  private boolean isClosed;
  private volatile Endpoint connectedTo;
  private volatile String lastError = "";

  RouteKeeper(
      Connections connections,
      EndpointChooser chooser,
      KeptTopics topics,
      Consumer<Answer> sink,
      Consumer<Boolean> cutOff,
      EventLoop loop,
      long timeoutMillis) {
    this.connections = connections;
    this.chooser = chooser;
    this.topics = topics;
    this.sink = sink;
    this.cutOff = cutOff;
    this.loop = loop;
    this.timeoutMillis = timeoutMillis;
  }

  /** The name server that keeps the routes up to date; null if there is none. */
  Endpoint connectedTo() {
    return connectedTo;
  }

  String lastError() {
    return lastError;
  }

  void start() {
    if (isClosed) {
      return;
    }
    session = new Session(chooser.current());
    session.checkHealth();
  }

  /** Sends topics that were added or dropped to the name server. */
  void topicsChanged() {
    session.update();
  }

  void close() {
    isClosed = true;
    session.close();
  }

  private void startLater() {
    connectedTo = null;
    loop.after(chooser.delayMillis(), this::start);
  }

  /** One session with one name server: its health, then a watch of all kept topics. */
  private final class Session {
    private final Endpoint endpoint;
    private WatchStream stream;
    private ClientCallStreamObserver<WatchTopicRoutesRequest> call;
    private ScheduledFuture<?> steadyTimer;
    private ScheduledFuture<?> updateTimer;
    private boolean isHealthy;
    private boolean isSteady;
    private boolean hasBegunAnew;
    private boolean hasEnded;
    private long askedAtMillis;
    private long heardAtMillis;

    private Session(Endpoint endpoint) {
      this.endpoint = endpoint;
    }

    private void checkHealth() {
      var request = HealthCheckRequest.newBuilder().setService(RouteServiceGrpc.SERVICE_NAME).build();
      var health = HealthGrpc.newFutureStub(connections.to(endpoint));
      Futures.addCallback(
          health.withDeadlineAfter(timeoutMillis, TimeUnit.MILLISECONDS).check(request),
          new FutureCallback<>() {
            @Override
            public void onSuccess(HealthCheckResponse response) {
              begin(response.getStatus() == ServingStatus.SERVING);
            }

            @Override
            public void onFailure(Throwable failure) {
              if (HAS_NO_HEALTH.contains(Status.fromThrowable(failure).getCode())) {
                begin(true);
              } else {
                fail(RouteException.of(endpoint, failure));
              }
            }
          },
          loop);
    }

    /** Watches at a name server that is not ready only if there is no other one. */
    private void begin(boolean isReady) {
      if (hasEnded) {
        return;
      }
      if (!isReady && !chooser.allFailed()) {
        fail(unavailable("says that it is not ready"));
        return;
      }
      isHealthy = true;
      steadyTimer = loop.after(STEADY_MILLIS, isReady ? this::becomeSteady : this::lookForBetter);
      if (topics.additions.isEmpty()) {
        connected();
      }
      update();
    }

    private void becomeSteady() {
      isSteady = true;
      chooser.succeeded();
    }

    private void lookForBetter() {
      close();
      chooser.chooseAnew();
      startLater();
    }

    private void connected() {
      if (connectedTo == null) {
        connections.hurry();
      }
      connectedTo = endpoint;
      cutOff.accept(false);
    }

    /** Opens the watch, sends a changed list of topics, or ends the session because a request has no answer. */
    private void update() {
      if (hasEnded || !isHealthy) {
        return;
      }
      cancel(updateTimer);
      long now = loop.nowMillis();
      if (stream == null) {
        if (!topics.additions.isEmpty()) {
          open(topics.resumeAt(endpoint));
        }
      } else if (stream.isWaiting()) {
        long left = heardAtMillis + timeoutMillis - now;
        if (left <= 0) {
          fail(unavailable("did not answer a request of the watch in time"));
        } else {
          updateTimer = loop.after(left, this::update);
        }
      } else if (now < askedAtMillis + UPDATE_MILLIS) {
        updateTimer = loop.after(askedAtMillis + UPDATE_MILLIS - now, this::update);
      } else {
        WatchTopicRoutesRequest request = stream.update(topics.additions);
        if (request != null) {
          send(request);
        }
      }
    }

    private void open(WatchedUpTo from) {
      stream = from == null ? new WatchStream(topics.additions, null) : new WatchStream(from.topics(), from.point());
      topics.stream = stream;
      RouteServiceGrpc.newStub(connections.to(endpoint)).watchTopicRoutes(new Reader(stream));
      send(stream.opening());
    }

    private void send(WatchTopicRoutesRequest request) {
      askedAtMillis = heardAtMillis = loop.nowMillis();
      call.onNext(request);
      updateTimer = loop.after(timeoutMillis, this::update);
    }

    private void take(WatchTopicRoutesResponse response) {
      heardAtMillis = loop.nowMillis();
      boolean wasWaiting = stream.isWaiting();
      List<Answer> answers;
      try {
        answers = stream.take(response);
      } catch (ProtocolException broken) {
        topics.watched = null;
        fail(unavailable(broken.getMessage()));
        return;
      }
      var point = stream.resumePoint();
      topics.watched = point == null ? null : new WatchedUpTo(endpoint, stream.counted(), point);
      answers.forEach(sink);
      if (stream.stands()) {
        connected();
      }
      if (wasWaiting && !stream.isWaiting()) {
        update();
      }
    }

    private void watchEnded(RouteException failure) {
      boolean resumed = stream.resumePoint() != null && !topics.additions.isEmpty();
      if (FROM_THE_BEGINNING.contains(failure.reason()) && resumed && !hasBegunAnew) {
        hasBegunAnew = true;
        topics.watched = null;
        open(null);
      } else if (failure.reason().equals("WATCH_EXPIRED") && isSteady) {
        lookForBetter();
      } else {
        fail(failure);
      }
    }

    /** Goes to the next name server, which may be this one again. */
    private void fail(RouteException failure) {
      if (hasEnded) {
        return;
      }
      close();
      lastError = failure.getMessage();
      chooser.failed(failure.retryAfter().map(Duration::toMillis).orElse(0L));
      if (chooser.allFailed()) {
        cutOff.accept(true);
      }
      connections.drop(endpoint);
      startLater();
    }

    private void close() {
      hasEnded = true;
      topics.stream = null;
      cancel(steadyTimer);
      cancel(updateTimer);
      if (call != null) {
        call.cancel("the session has ended", null);
      }
    }

    private static void cancel(ScheduledFuture<?> timer) {
      if (timer != null) {
        timer.cancel(false);
      }
    }

    private RouteException unavailable(String text) {
      return new RouteException(Status.Code.UNAVAILABLE, "", endpoint + ": " + text);
    }

    /** Passes the messages of one call on, unless another call has replaced it. */
    private final class Reader implements ClientResponseObserver<WatchTopicRoutesRequest, WatchTopicRoutesResponse> {
      private final WatchStream read;

      private Reader(WatchStream read) {
        this.read = read;
      }

      @Override
      public void beforeStart(ClientCallStreamObserver<WatchTopicRoutesRequest> requests) {
        call = requests;
      }

      @Override
      public void onNext(WatchTopicRoutesResponse response) {
        if (!hasEnded && stream == read) {
          take(response);
        }
      }

      @Override
      public void onError(Throwable failure) {
        if (!hasEnded && stream == read) {
          watchEnded(RouteException.of(endpoint, failure));
        }
      }

      @Override
      public void onCompleted() {
        if (!hasEnded && stream == read) {
          watchEnded(unavailable("ended the watch"));
        }
      }
    }
  }
}
