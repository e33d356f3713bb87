package dev.namesrv.client;

import com.google.gson.Gson;
import com.google.gson.reflect.TypeToken;
import io.grpc.CallCredentials;
import io.grpc.ChannelCredentials;
import io.grpc.CompositeChannelCredentials;
import io.grpc.Grpc;
import io.grpc.ManagedChannel;
import io.grpc.ManagedChannelBuilder;
import io.grpc.Metadata;
import io.grpc.Status;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.Executor;
import java.util.concurrent.ForkJoinPool;
import java.util.concurrent.TimeUnit;
import java.util.function.Supplier;

/**
 * The gRPC channels of a client: one to all name servers for lookups, one to each name server that is watched.
 *
 * <p>Belongs to the client's event loop, on which all callbacks of calls run.
 */
final class Connections {
  /** gRPC's Java library sends a ping every 10 s at most. A name server that hangs is noticed within 15 s. */
  private static final long KEEPALIVE_SECONDS = 10;

  private static final long KEEPALIVE_TIMEOUT_SECONDS = 5;

  /** The largest answers: a name server limits them itself. */
  private static final int MAX_MESSAGE_BYTES = 64 * 1024 * 1024;

  private final ChannelCredentials credentials;
  private final Executor loop;
  private final ManagedChannel balanced;
  private final Map<Endpoint, ManagedChannel> single = new HashMap<>();

  Connections(List<Endpoint> endpoints, ChannelCredentials plain, Supplier<String> token, Executor loop) {
    this.credentials = token == null ? plain : CompositeChannelCredentials.create(plain, new BearerToken(token));
    this.loop = loop;
    String all = ListResolverProvider.targetOf(endpoints);
    this.balanced = configure(all).defaultServiceConfig(readServiceConfig()).build();
  }

  /** Returns the channel to all name servers, as the service config says. */
  ManagedChannel toAll() {
    return balanced;
  }

  /** Returns the channel to one name server, which is opened if there is none. */
  ManagedChannel to(Endpoint endpoint) {
    return single.computeIfAbsent(endpoint, unknown -> configure(endpoint.toString()).build());
  }

  /** Closes the channel to one name server. The next call connects at once, where gRPC would wait first. */
  void drop(Endpoint endpoint) {
    ManagedChannel channel = single.remove(endpoint);
    if (channel != null) {
      channel.shutdownNow();
    }
  }

  /** Connects to all name servers at once where gRPC would wait: one of them is back. */
  void hurry() {
    balanced.resetConnectBackoff();
  }

  void close() {
    balanced.shutdownNow();
    single.values().forEach(ManagedChannel::shutdownNow);
  }

  private ManagedChannelBuilder<?> configure(String target) {
    return Grpc.newChannelBuilder(target, credentials)
        .executor(loop)
        .maxInboundMessageSize(MAX_MESSAGE_BYTES)
        .keepAliveTime(KEEPALIVE_SECONDS, TimeUnit.SECONDS)
        .keepAliveTimeout(KEEPALIVE_TIMEOUT_SECONDS, TimeUnit.SECONDS);
  }

  /** Reads the documented service config. Gson reads numbers as Double, as gRPC requires. */
  private static Map<String, ?> readServiceConfig() {
    var file = Connections.class.getResourceAsStream("service_config.json");
    var reader = new InputStreamReader(file, StandardCharsets.UTF_8);
    return new Gson().fromJson(reader, new TypeToken<Map<String, Object>>() {}.getType());
  }

  /** A token that each call sends. The supplier is asked for it each time, so that a token can be replaced. */
  private static final class BearerToken extends CallCredentials {
    private static final Metadata.Key<String> AUTHORIZATION =
        Metadata.Key.of("authorization", Metadata.ASCII_STRING_MARSHALLER);

    private final Supplier<String> token;

    private BearerToken(Supplier<String> token) {
      this.token = token;
    }

    @Override
    public void applyRequestMetadata(RequestInfo call, Executor executor, MetadataApplier applier) {
      // A supplier may wait, so it must not run on the event loop.
      ForkJoinPool.commonPool().execute(() -> apply(applier));
    }

    private void apply(MetadataApplier applier) {
      var headers = new Metadata();
      try {
        headers.put(AUTHORIZATION, "Bearer " + token.get());
        applier.apply(headers);
      } catch (RuntimeException failure) {
        applier.fail(Status.UNAUTHENTICATED.withDescription("no token").withCause(failure));
      }
    }
  }
}
