package dev.namesrv.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;

import io.grpc.ChannelLogger;
import io.grpc.EquivalentAddressGroup;
import io.grpc.NameResolver;
import io.grpc.NameResolverRegistry;
import io.grpc.StatusOr;
import io.grpc.SynchronizationContext;
import io.grpc.internal.GrpcUtil;
import java.net.InetSocketAddress;
import java.net.URI;
import java.util.ArrayList;
import java.util.List;
import org.junit.jupiter.api.Test;

/** Tests of the resolver as gRPC finds it. */
class ListResolverProviderTest {
  private static List<StatusOr<List<EquivalentAddressGroup>>> resolve(String list) {
    List<StatusOr<List<EquivalentAddressGroup>>> results = new ArrayList<>();
    var args =
        NameResolver.Args.newBuilder()
            .setDefaultPort(80)
            .setProxyDetector(GrpcUtil.NOOP_PROXY_DETECTOR)
            .setSynchronizationContext(new SynchronizationContext((thread, failure) -> {}))
            .setServiceConfigParser(
                new NameResolver.ServiceConfigParser() {
                  @Override
                  public NameResolver.ConfigOrError parseServiceConfig(java.util.Map<String, ?> config) {
                    throw new AssertionError();
                  }
                })
            .setChannelLogger(
                new ChannelLogger() {
                  @Override
                  public void log(ChannelLogLevel level, String message) {}

                  @Override
                  public void log(ChannelLogLevel level, String format, Object... values) {}
                })
            .setOffloadExecutor(Runnable::run)
            .build();
    var target = URI.create(ListResolverProvider.targetOf(Endpoint.parseList(list)));
    NameResolverRegistry.getDefaultRegistry()
        .asFactory()
        .newNameResolver(target, args)
        .start(
            new NameResolver.Listener2() {
              @Override
              public void onResult(NameResolver.ResolutionResult result) {
                results.add(result.getAddressesOrError());
              }

              @Override
              public void onError(io.grpc.Status error) {
                throw new AssertionError(error);
              }
            });
    return results;
  }

  @Test
  void eachNameServerIsAnAddressWithItsOwnAuthority() {
    List<EquivalentAddressGroup> found = resolve("127.0.0.1:1,[::1]:2").get(0).getValue();
    assertEquals(
        List.of("127.0.0.1:1", "[::1]:2"),
        found.stream().map(group -> group.getAttributes().get(EquivalentAddressGroup.ATTR_AUTHORITY_OVERRIDE)).toList());
    assertEquals(List.of(new InetSocketAddress("127.0.0.1", 1)), found.get(0).getAddresses());
  }

  @Test
  void aHostThatIsUnknownLeavesTheOthers() {
    assertEquals(1, resolve("127.0.0.1:1,no-such-host.invalid:2").get(0).getValue().size());
    assertFalse(resolve("no-such-host.invalid:2").get(0).hasValue());
  }

  @Test
  void theDefaultSchemeOfTargetsStaysDns() {
    assertEquals("dns", NameResolverRegistry.getDefaultRegistry().getDefaultScheme());
  }
}
