package dev.namesrv.client;

import java.util.Arrays;
import java.util.List;

/** The address of a name server. Its text has an IPv6 address in brackets. */
record Endpoint(String host, int port) {
  private static final int MAX_PORT = 65_535;

  /** Parses HOST:PORT. Throws IllegalArgumentException where the text is no address. */
  static Endpoint parse(String text) {
    int colon = text.lastIndexOf(':');
    String host = colon < 0 ? "" : text.substring(0, colon);
    if (host.startsWith("[") && host.endsWith("]")) {
      host = host.substring(1, host.length() - 1);
    } else if (host.contains(":")) {
      throw new IllegalArgumentException("name server '" + text + "': write an IPv6 address in brackets");
    }
    String digits = text.substring(colon + 1);
    int port = digits.matches("[0-9]{1,5}") ? Integer.parseInt(digits) : 0;
    if (host.isBlank() || port < 1 || port > MAX_PORT) {
      throw new IllegalArgumentException("name server '" + text + "' is not HOST:PORT");
    }
    return new Endpoint(host, port);
  }

  /** Parses HOST:PORT,HOST:PORT... Duplicates count once. */
  static List<Endpoint> parseList(String texts) {
    return Arrays.stream(texts.split(",")).map(String::strip).map(Endpoint::parse).distinct().toList();
  }

  @Override
  public String toString() {
    return (host.contains(":") ? "[" + host + "]" : host) + ":" + port;
  }
}
