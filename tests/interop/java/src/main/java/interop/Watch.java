package interop;

import io.grpc.ManagedChannel;
import io.grpc.StatusException;
import java.util.ArrayDeque;
import java.util.List;
import dev.namesrv.api.v1.NamesrvHeader;
import dev.namesrv.api.v1.ResumePoint;
import dev.namesrv.api.v1.RouteServiceGrpc;
import dev.namesrv.api.v1.TopicRouteChange;
import dev.namesrv.api.v1.WatchTopicRoutesRequest;
import dev.namesrv.api.v1.WatchTopicRoutesResponse;

/**
 * Prints topics' routes as they change: one line of JSON for each change and each bookmark.
 *
 * <p>Usage: Watch [--after EPOCH/REVISION] [--add TOPIC] HOST:PORT TOPIC|PREFIX*...
 *
 * <p>The topic of --add joins the open watch after the first bookmark. A change is {"revision": ..., "change": a TopicRouteChange}, a bookmark {"revision": ..., "epoch": ...,
 * "bookmark": true}: the point to give to --after, so that only what changed since is printed. It ends when it is
 * ended, or exits 1 with one line on standard error if the stream fails.
 */
public final class Watch {
  private Watch() {}

  public static void main(String[] arguments) throws Exception {
    var words = new ArrayDeque<>(List.of(arguments));
    var request = WatchTopicRoutesRequest.newBuilder();
    if ("--after".equals(words.peek())) {
      words.remove();
      request.setResumeAfter(resumePoint(words.remove()));
    }
    String added = null;
    if ("--add".equals(words.peek())) {
      words.remove();
      added = words.remove();
    }
    if (words.size() < 2) {
      System.err.println("usage: Watch [--after EPOCH/REVISION] [--add TOPIC] HOST:PORT TOPIC|PREFIX*...");
      System.exit(2);
    }
    ManagedChannel connection = Namesrv.connect(words.remove());
    for (String name : words) {
      if (name.endsWith("*")) {
        request.addTopicPrefixes(name.substring(0, name.length() - 1));
      } else {
        request.addTopics(name);
      }
    }
    try {
      // No deadline: a watch ends when one side leaves. Reading one message asks the name server for the next.
      var stream = RouteServiceGrpc.newBlockingV2Stub(connection).watchTopicRoutes();
      stream.write(request.build());
      for (var message = stream.read(); message != null; message = stream.read()) {
        print(message);
        if (message.getBookmark() && added != null) {
          stream.write(WatchTopicRoutesRequest.newBuilder().addTopics(added).build());
          added = null;
        }
      }
    } catch (StatusException failure) {
      System.err.println(Namesrv.describe(failure));
      System.exit(1);
    } finally {
      connection.shutdownNow();
    }
  }

  private static ResumePoint resumePoint(String text) {
    String[] parts = text.split("/", 2);
    return ResumePoint.newBuilder().setEpoch(parts[0]).setRevision(Long.parseLong(parts[1])).build();
  }

  private static void print(WatchTopicRoutesResponse message) throws Exception {
    NamesrvHeader header = message.getHeader();
    for (TopicRouteChange change : message.getChangesList()) {
      System.out.printf("{\"revision\": \"%d\", \"change\": %s}%n", header.getRevision(), Namesrv.JSON.print(change));
    }
    if (message.getBookmark()) {
      System.out.printf(
          "{\"revision\": \"%d\", \"epoch\": \"%s\", \"bookmark\": true}%n", header.getRevision(), header.getEpoch());
    }
  }
}
