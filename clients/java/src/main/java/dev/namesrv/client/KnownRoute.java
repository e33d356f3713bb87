package dev.namesrv.client;

import dev.namesrv.api.v1.TopicRouteData;

/**
 * The route of a topic as the client knows it.
 *
 * @param topic name of the topic
 * @param route the route, its queues and groups sorted by broker name and cluster; null if the topic does not exist
 * @param staleness whether the route can be out of date, and why
 * @param namesrv name of the name server that sent the route
 * @param epoch lifetime of the process that sent the route
 * @param revision the name server's revision; comparable at equal name and epoch only
 */
public record KnownRoute(
    String topic, TopicRouteData route, Staleness staleness, String namesrv, String epoch, long revision) {
  /** Why a route can be out of date. */
  public enum Staleness {
    /** A name server confirms the route now. */
    FRESH,
    /** The last answer had no brokers and no convincing reason, so the route before it stays for a time. */
    HELD,
    /** No name server can be reached, so nobody reports changes. */
    DISCONNECTED
  }

  KnownRoute with(Staleness other) {
    return new KnownRoute(topic, route, other, namesrv, epoch, revision);
  }
}
