package dev.namesrv.client;

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
import java.util.concurrent.Executor;

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
    return new ListResolver(Endpoint.parseList(target.getPath().substring(1)), args);
  }

  private static final class ListResolver extends NameResolver {
    private final List<Endpoint> endpoints;
    private final Executor executor;
    private Listener2 listener;

    private ListResolver(List<Endpoint> endpoints, Args args) {
      this.endpoints = endpoints;
      this.executor = args.getOffloadExecutor();
    }

    /** Only for connections of transports that ignore the authority of each address. */
    @Override
    public String getServiceAuthority() {
      return endpoints.get(0).toString();
    }

    @Override
    public void start(Listener2 listener) {
      this.listener = listener;
      refresh();
    }

    @Override
    public void refresh() {
      executor.execute(this::resolve);
    }

    @Override
    public void shutdown() {}

    private void resolve() {
      List<EquivalentAddressGroup> found = new ArrayList<>();
      List<String> unknown = new ArrayList<>();
      for (Endpoint endpoint : endpoints) {
        try {
          var address = new InetSocketAddress(InetAddress.getByName(endpoint.host()), endpoint.port());
          var authority =
              Attributes.newBuilder()
                  .set(EquivalentAddressGroup.ATTR_AUTHORITY_OVERRIDE, endpoint.toString())
                  .build();
          found.add(new EquivalentAddressGroup(address, authority));
        } catch (UnknownHostException failure) {
          unknown.add(endpoint.host());
        }
      }
      StatusOr<List<EquivalentAddressGroup>> result =
          found.isEmpty()
              ? StatusOr.fromStatus(Status.UNAVAILABLE.withDescription("unknown hosts: " + unknown))
              : StatusOr.fromValue(found);
      listener.onResult(ResolutionResult.newBuilder().setAddressesOrError(result).build());
    }
  }
}
