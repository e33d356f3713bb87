package dev.namesrv.client;

import dev.namesrv.api.v1.BrokerRemoval;
import java.util.List;

/**
 * A change of a topic's route or of its staleness.
 *
 * @param topic name of the topic
 * @param before what was known; null if nothing was
 * @param after what is known now
 * @param removals why brokers left, as far as the name server said
 */
public record RouteChange(String topic, KnownRoute before, KnownRoute after, List<BrokerRemoval> removals) {}
