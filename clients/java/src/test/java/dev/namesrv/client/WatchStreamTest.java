package dev.namesrv.client;

import static dev.namesrv.client.Routes.header;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNull;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import dev.namesrv.api.v1.TopicRouteChange;
import dev.namesrv.api.v1.WatchTopicRoutesResponse;
import java.net.ProtocolException;
import java.util.Map;
import org.junit.jupiter.api.Test;

/** Tests of one watch beyond the conformance cases: broken streams, and which topics are current. */
class WatchStreamTest {
  private final WatchStream stream = new WatchStream(Map.of("T", 1L), null);

  private static WatchTopicRoutesResponse bookmark(String epoch, long revision, long count, String... topics) {
    var response =
        WatchTopicRoutesResponse.newBuilder()
            .setHeader(header(epoch, revision))
            .setBookmark(true)
            .setRequestCount(count);
    for (String topic : topics) {
      response.addChanges(TopicRouteChange.newBuilder().setTopic(topic));
    }
    return response.build();
  }

  private void assertBreaks(WatchTopicRoutesResponse response) {
    assertThrows(ProtocolException.class, () -> stream.take(response));
    assertNull(stream.resumePoint());
  }

  @Test
  void aStreamThatChangesItsEpochIsBroken() throws ProtocolException {
    stream.take(bookmark("e", 5, 1));
    assertBreaks(bookmark("f", 6, 1));
  }

  @Test
  void aStreamThatGoesBackIsBroken() throws ProtocolException {
    stream.take(bookmark("e", 5, 1));
    assertBreaks(bookmark("e", 4, 1));
  }

  @Test
  void aBookmarkThatCountsMoreThanWasAskedIsBroken() {
    assertBreaks(bookmark("e", 5, 2));
  }

  @Test
  void aTopicIsCurrentOnceABookmarkFollowsIt() throws ProtocolException {
    stream.take(bookmark("e", 5, 1));
    assertFalse(stream.hasSent("T", 1));
    stream.take(bookmark("e", 6, 1, "T"));
    assertTrue(stream.hasSent("T", 1));
    assertFalse(stream.hasSent("T", 2));
  }
}
