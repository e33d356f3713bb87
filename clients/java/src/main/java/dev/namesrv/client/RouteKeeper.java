package dev.namesrv.client;

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
import io.grpc.stub.StreamObserver;
import java.time.Duration;
import java.util.List;
import java.util.Set;
import java.util.concurrent.ScheduledExecutorService;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.LongSupplier;

/**
 * The keeper of the cache: one session after the other, each with one name server for as long as that works.
 *
 * <p>Belongs to the client's event loop, except for its getters.
 */
final class RouteKeeper {
  /** Takes what the name servers say. */
  interface Sink {
    void take(Answer answer);

    void setCutOff(boolean isCutOff);
  }

  /** A session that lasts so long counts as a success. Sessions that end earlier must lead to a backoff. */
  private static final long STEADY_MILLIS = 5_000;

  /** How long a session lasts with a name server that says it is not ready. */
  private static final long UNREADY_MILLIS = 5_000;

  /** Shortest time from one request of a watch to the next: many additions cost few requests. */
  private static final long UPDATE_MILLIS = 50;

  private static final Set<Status.Code> HAS_NO_HEALTH = Set.of(Status.Code.UNIMPLEMENTED, Status.Code.NOT_FOUND);

  /** Reasons why a watch cannot be resumed. It is opened again at once, without a resume point. */
  private static final Set<String> FROM_THE_BEGINNING = Set.of("EPOCH_CHANGED", "REVISION_COMPACTED");

  private final Connections connections;
  private final EndpointChooser chooser;
  private final KeptTopics topics;
  private final Sink sink;
  private final ScheduledExecutorService loop;
  private final LongSupplier clockMillis;
  private final long timeoutMillis;
  private Session session;
  private boolean isClosed;
  private volatile Endpoint connectedTo;
  private volatile String lastError = "";
  private volatile long sessions;

  RouteKeeper(
      Connections connections,
      EndpointChooser chooser,
      KeptTopics topics,
      Sink sink,
      ScheduledExecutorService loop,
      LongSupplier clockMillis,
      long timeoutMillis) {
    this.connections = connections;
    this.chooser = chooser;
    this.topics = topics;
    this.sink = sink;
    this.loop = loop;
    this.clockMillis = clockMillis;
    this.timeoutMillis = timeoutMillis;
  }

  /** The name server that keeps the routes up to date; null if there is none. */
  Endpoint connectedTo() {
    return connectedTo;
  }

  String lastError() {
    return lastError;
  }

  long sessions() {
    return sessions;
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
    loop.schedule(this::start, chooser.delayMillis(), TimeUnit.MILLISECONDS);
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
      HealthGrpc.newStub(connections.to(endpoint))
          .withDeadlineAfter(timeoutMillis, TimeUnit.MILLISECONDS)
          .check(
              request,
              new StreamObserver<>() {
                @Override
                public void onNext(HealthCheckResponse response) {
                  begin(response.getStatus() == ServingStatus.SERVING);
                }

                @Override
                public void onError(Throwable failure) {
                  if (HAS_NO_HEALTH.contains(Status.fromThrowable(failure).getCode())) {
                    begin(true);
                  } else {
                    fail(RouteException.of(endpoint, failure));
                  }
                }

                @Override
                public void onCompleted() {}
              });
    }

    /** Watches at a name server that is not ready only if there is no other one. */
    private void begin(boolean isReady) {
      if (hasEnded) {
        return;
      }
      if (!isReady && !chooser.allFailed()) {
        leave(unavailable("says that it is not ready"));
        return;
      }
      sessions++;
      isHealthy = true;
      steadyTimer =
          isReady ? schedule(this::becomeSteady, STEADY_MILLIS) : schedule(this::lookForBetter, UNREADY_MILLIS);
      if (topics.additions().isEmpty()) {
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
      sink.setCutOff(false);
    }

    /** Opens the watch, sends a changed list of topics, or ends the session because a request has no answer. */
    private void update() {
      if (hasEnded || !isHealthy) {
        return;
      }
      if (updateTimer != null) {
        updateTimer.cancel(false);
      }
      long now = clockMillis.getAsLong();
      if (stream == null) {
        if (!topics.additions().isEmpty()) {
          open(topics.resumeAt(endpoint));
        }
      } else if (stream.isWaiting()) {
        long left = heardAtMillis + timeoutMillis - now;
        if (left <= 0) {
          String text = endpoint + ": did not answer a request of the watch in time";
          fail(new RouteException(Status.Code.DEADLINE_EXCEEDED, "", text));
        } else {
          updateTimer = schedule(this::update, left);
        }
      } else if (now < askedAtMillis + UPDATE_MILLIS) {
        updateTimer = schedule(this::update, askedAtMillis + UPDATE_MILLIS - now);
      } else {
        WatchTopicRoutesRequest request = stream.update(topics.additions());
        if (request != null) {
          send(request);
        }
      }
    }

    private void open(WatchedUpTo resume) {
      WatchStream opened =
          resume == null ? new WatchStream(topics.additions(), null) : new WatchStream(resume.topics(), resume.point());
      stream = opened;
      topics.setStream(opened);
      RouteServiceGrpc.newStub(connections.to(endpoint)).watchTopicRoutes(new Reader(opened));
      send(opened.opening());
    }

    private void send(WatchTopicRoutesRequest request) {
      askedAtMillis = heardAtMillis = clockMillis.getAsLong();
      call.onNext(request);
      updateTimer = schedule(this::update, timeoutMillis);
    }

    private void take(WatchTopicRoutesResponse response) {
      heardAtMillis = clockMillis.getAsLong();
      boolean wasWaiting = stream.isWaiting();
      List<Answer> answers;
      try {
        answers = stream.take(response);
      } catch (WatchStream.BrokenException broken) {
        topics.setWatched(null);
        fail(unavailable(broken.getMessage()));
        return;
      }
      var point = stream.resumePoint();
      topics.setWatched(point == null ? null : new WatchedUpTo(endpoint, stream.counted(), point));
      answers.forEach(sink::take);
      if (stream.stands()) {
        connected();
      }
      if (wasWaiting && !stream.isWaiting()) {
        update();
      }
    }

    private void watchEnded(RouteException failure) {
      boolean resumed = stream.resumePoint() != null && !topics.additions().isEmpty();
      if (FROM_THE_BEGINNING.contains(failure.reason()) && resumed && !hasBegunAnew) {
        hasBegunAnew = true;
        topics.setWatched(null);
        open(null);
      } else if (failure.reason().equals("WATCH_EXPIRED") && isSteady) {
        lookForBetter();
      } else {
        fail(failure);
      }
    }

    private void fail(RouteException failure) {
      if (hasEnded) {
        return;
      }
      leave(failure);
      if (chooser.allFailed()) {
        sink.setCutOff(true);
      }
    }

    /** Goes to the next name server, which may be this one again. */
    private void leave(RouteException failure) {
      close();
      lastError = failure.getMessage();
      chooser.failed(failure.retryAfter().map(Duration::toMillis).orElse(0L));
      connections.drop(endpoint);
      startLater();
    }

    private void close() {
      hasEnded = true;
      topics.setStream(null);
      for (ScheduledFuture<?> timer : new ScheduledFuture<?>[] {steadyTimer, updateTimer}) {
        if (timer != null) {
          timer.cancel(false);
        }
      }
      if (call != null) {
        call.cancel("the session has ended", null);
      }
    }

    private ScheduledFuture<?> schedule(Runnable task, long millis) {
      return loop.schedule(task, millis, TimeUnit.MILLISECONDS);
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
