"""Routes for producers and consumers: ask any name server, go to the next when one does not answer."""

from route_client.lookup import NoNamesrvAnsweredError, RouteLookup, RouteLookupError, TopicNotFoundError

__all__ = ["NoNamesrvAnsweredError", "RouteLookup", "RouteLookupError", "TopicNotFoundError"]
