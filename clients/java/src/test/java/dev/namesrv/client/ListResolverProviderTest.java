package dev.namesrv.client;

import static io.grpc.EquivalentAddressGroup.ATTR_AUTHORITY_OVERRIDE;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;

import io.grpc.NameResolverRegistry;
import java.net.InetSocketAddress;
import java.net.URI;
import java.util.List;
import org.junit.jupiter.api.Test;

/** Tests of the resolver of lists; conformance cases use it with gRPC. */
class ListResolverProviderTest {
  private static final List<Endpoint> TWO = Endpoint.parseList("127.0.0.1:1,[::1]:2");
  private static final List<Endpoint> UNKNOWN = Endpoint.parseList("no-such-host.invalid:2");

  @Test
  void eachNameServerIsAnAddressWithItsOwnAuthority() {
    var found = ListResolverProvider.addressesOf(TWO).getValue();
    var authorities = found.stream().map(group -> group.getAttributes().get(ATTR_AUTHORITY_OVERRIDE));
    assertEquals(List.of("127.0.0.1:1", "[::1]:2"), authorities.toList());
    assertEquals(List.of(new InetSocketAddress("127.0.0.1", 1)), found.get(0).getAddresses());
  }

  @Test
  void aHostThatIsUnknownLeavesTheOthers() {
    var mixed = List.of(TWO.get(0), UNKNOWN.get(0));
    assertEquals(1, ListResolverProvider.addressesOf(mixed).getValue().size());
    assertFalse(ListResolverProvider.addressesOf(UNKNOWN).hasValue());
  }

  @Test
  void aTargetKeepsIpv6AddressesAndTheDefaultSchemeStaysDns() {
    String path = URI.create(ListResolverProvider.targetOf(TWO)).getPath();
    assertEquals(TWO, Endpoint.parseList(path.substring(1)));
    assertEquals("dns", NameResolverRegistry.getDefaultRegistry().getDefaultScheme());
  }
}
