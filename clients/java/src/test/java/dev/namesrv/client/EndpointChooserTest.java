package dev.namesrv.client;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import java.util.HashSet;
import java.util.List;
import java.util.Random;
import java.util.Set;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.params.ParameterizedTest;
import org.junit.jupiter.params.provider.ValueSource;

/** Tests of addresses and of the choice among them. */
class EndpointChooserTest {
  private static final List<Endpoint> TWO = Endpoint.parseList("a:1,[::1]:2");

  private long nowMillis;

  private EndpointChooser chooser() {
    return new EndpointChooser(TWO, new Random(7), () -> nowMillis);
  }

  @ParameterizedTest
  @ValueSource(strings = {"", "a", "a:", ":1", "a:0", "a:65536", "a:b", "::1:2", "a:1,,b:2"})
  void aTextThatIsNoAddressIsRefused(String text) {
    assertThrows(IllegalArgumentException.class, () -> Endpoint.parseList(text));
  }

  @Test
  void anAddressIsPrintedAsItWasRead() {
    assertEquals("[::1]:2", TWO.get(1).toString());
    assertEquals(TWO, Endpoint.parseList(" a:1 , [::1]:2,a:1"));
  }

  @Test
  void theNextNameServerIsCalledAtOnceAndWaitsGrowAfterARound() {
    var chooser = chooser();
    Endpoint first = chooser.current();
    chooser.failed(0);
    assertNotEquals(first, chooser.current());
    assertEquals(0, chooser.delayMillis());
    for (long step : new long[] {200, 320, 512}) {
      chooser.failed(0);
      long delay = chooser.delayMillis();
      assertTrue(step * 8 / 10 - 1 <= delay && delay <= step * 12 / 10, step + ": " + delay);
    }
    chooser.succeeded();
    assertEquals(0, chooser.delayMillis());
  }

  @Test
  void aNameServerThatAsksToBeLeftAloneIsLeftAlone() {
    var chooser = chooser();
    chooser.failed(5_000);
    Endpoint other = chooser.current();
    chooser.failed(0);
    assertEquals(other, chooser.current());
    chooser.failed(9_000_000);
    assertNotEquals(other, chooser.current());
    assertEquals(5_000, chooser.delayMillis());
    nowMillis = 60_000;
    Set<Endpoint> chosen = new HashSet<>();
    for (int times = 0; times < 50; times++) {
      chooser.chooseAnew();
      chosen.add(chooser.current());
    }
    assertEquals(Set.copyOf(TWO), chosen);
  }
}
