package dev.namesrv.client;

import static io.grpc.EquivalentAddressGroup.ATTR_AUTHORITY_OVERRIDE;

import io.grpc.Attributes;
import io.grpc.EquivalentAddressGroup;
import io.grpc.NameResolver;
import io.grpc.NameResolverProvider;
import io.grpc.Status;
import io.grpc.StatusOr;
import java.net.InetAddress;
import java.net.InetSocketAddress;
import java.net.URI;
import java.net.URISyntaxException;
import java.net.UnknownHostException;
import java.util.ArrayList;
import java.util.List;

/**
 * The resolver of targets {@code list:///HOST:PORT,HOST:PORT...}: several name servers as one target.
 *
 * <p>gRPC finds it as a service of this module, so that channels of programs can use such targets, too. Host names are
 * resolved again after each failed connection. Over TLS, each certificate must name the host of its own element.
 */
public final class ListResolverProvider extends NameResolverProvider {
  private static final String SCHEME = "list";

  /** Below the DNS resolver's 5, whose scheme therefore stays the default. */
  private static final int PRIORITY = 4;

  /** Returns the target of name servers. The brackets of an IPv6 address become %5B and %5D. */
  static String targetOf(List<Endpoint> endpoints) {
    String list = String.join(",", endpoints.stream().map(Endpoint::toString).toList());
    try {
      return new URI(SCHEME, "", "/" + list, null).toString();
    } catch (URISyntaxException defect) {
      throw new IllegalArgumentException(list, defect);
    }
  }

  @Override
  protected boolean isAvailable() {
    return true;
  }

  @Override
  protected int priority() {
    return PRIORITY;
  }

  @Override
  public String getDefaultScheme() {
    return SCHEME;
  }

  @Override
  public NameResolver newNameResolver(URI target, NameResolver.Args args) {
    if (!SCHEME.equals(target.getScheme())) {
      return null;
    }
    List<Endpoint> endpoints = Endpoint.parseList(target.getPath().substring(1));
    return new NameResolver() {
      private Listener2 listener;

      /** Each address has an authority of its own, so nothing uses this one. */
      @Override
      public String getServiceAuthority() {
        return endpoints.get(0).toString();
      }

      @Override
      public void start(Listener2 starting) {
        listener = starting;
        refresh();
      }

      @Override
      public void refresh() {
        args.getOffloadExecutor().execute(this::resolve);
      }

      private void resolve() {
        listener.onResult(ResolutionResult.newBuilder().setAddressesOrError(addressesOf(endpoints)).build());
      }

      @Override
      public void shutdown() {}
    };
  }

  /** Returns the addresses of the hosts that can be resolved, or an error if there are none. */
  static StatusOr<List<EquivalentAddressGroup>> addressesOf(List<Endpoint> endpoints) {
    List<EquivalentAddressGroup> found = new ArrayList<>();
    for (Endpoint endpoint : endpoints) {
      try {
        var address = new InetSocketAddress(InetAddress.getByName(endpoint.host()), endpoint.port());
        var attributes = Attributes.newBuilder().set(ATTR_AUTHORITY_OVERRIDE, endpoint.toString()).build();
        found.add(new EquivalentAddressGroup(address, attributes));
      } catch (UnknownHostException unknown) {
        // The other name servers can be called.
      }
    }
    return found.isEmpty()
        ? StatusOr.fromStatus(Status.UNAVAILABLE.withDescription("unknown hosts: " + endpoints))
        : StatusOr.fromValue(found);
  }
}
