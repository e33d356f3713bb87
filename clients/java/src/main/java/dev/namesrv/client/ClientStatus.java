package dev.namesrv.client;

import java.util.Set;

/**
 * The status of a client at one moment.
 *
 * @param namesrv HOST:PORT of the name server that keeps the routes up to date; null if there is none
 * @param lastError the last failure of a name server; empty if there was none
 * @param topics topics that the client keeps
 * @param heldTopics topics whose loss of all brokers is held back; alert somebody if there are any
 */
public record ClientStatus(String namesrv, String lastError, int topics, Set<String> heldTopics) {}
