"""Which brokers of a fleet are shown, and in which order."""

from __future__ import annotations

import pytest

from nsctl.console.views.brokers import BROKERS_PAGE, CLUSTER_ROWS, OPEN_ROWS, Json, Wanted, clusters, page

ALL = Wanted()


def row(cluster: str, number: int, state: str = "live", heard_at: int = 0) -> Json:
    return {
        "cluster": cluster,
        "broker": f"broker-{number:03}",
        "id": 0,
        "addr": f"10.0.0.{number}:10911",
        "state": state,
        "heardAt": heard_at,
        "topicsVersion": 1,
    }


def fleet(**sizes: int) -> list[Json]:
    return [row(cluster, number) for cluster, size in sizes.items() for number in range(size)]


def overview(rows: list[Json], wanted: Wanted = ALL, unfolded: str = "", folded: str = "") -> dict[str, int | None]:
    """How many rows each cluster shows; None of one that is folded."""
    names = [frozenset(filter(None, [text])) for text in (unfolded, folded)]
    told = clusters(rows, wanted, *names)
    return {one["name"]: len(one["rows"]) if one["open"] else None for one in told["clusters"]}


def test_small_clusters_begin_open_and_big_ones_folded_unless_it_is_the_only_one() -> None:
    assert overview(fleet(east=CLUSTER_ROWS, west=CLUSTER_ROWS + 1)) == {"east": CLUSTER_ROWS, "west": None}
    assert overview(fleet(east=500)) == {"east": CLUSTER_ROWS}


def test_of_very_many_clusters_only_the_first_begin_open() -> None:
    shown = overview(fleet(**{f"c{number:02}": 10 for number in range(50)}))
    assert list(shown.values()) == [10] * (OPEN_ROWS // 10) + [None] * (50 - OPEN_ROWS // 10)


def test_somebody_opens_a_cluster_or_folds_it() -> None:
    rows = fleet(east=1, west=CLUSTER_ROWS + 1)
    assert overview(rows, unfolded="west", folded="east") == {"east": None, "west": CLUSTER_ROWS}


def test_the_unhealthy_are_found_in_a_big_cluster_and_counted() -> None:
    rows = [*fleet(east=499), row("east", 499, "late"), row("west", 0, "left"), row("west", 1)]
    assert overview(rows, Wanted(unhealthy=True)) == {"east": 1, "west": 1}
    told = clusters(rows, ALL, frozenset(), frozenset())
    assert (told["total"], told["matched"], told["unhealthy"]) == (502, 502, 2)
    east, west = told["clusters"]
    assert (east["brokers"], east["states"]) == (500, {"late": 1})
    assert (west["brokers"], west["states"]) == (1, {"left": 1}), "who left is no broker of the cluster"


@pytest.mark.parametrize(
    ("text", "found"), [("EAST", 2), ("broker-001", 2), ("10.0.0.0", 2), ("late", 1), ("nothing", 0)]
)
def test_a_text_is_looked_for_in_cluster_name_address_and_state(text: str, found: int) -> None:
    rows = [*fleet(east=2, west=1), row("west", 1, "late")]
    assert len(Wanted(contains=text).of(rows)) == found


def test_they_are_sorted_by_a_column_and_by_name_where_that_is_the_same() -> None:
    rows = [row("east", 2, "live", 5), row("east", 1, "late", 9), row("east", 0, "left", 9)]

    def order(by: str) -> list[str]:
        return [one["broker"][-1] for one in Wanted(order=by).of(rows)]

    assert order("") == order("nothing") == order("broker") == ["0", "1", "2"]
    assert order("-broker") == ["2", "1", "0"]
    assert order("state") == ["0", "1", "2"], "the worst first"
    assert order("heard") == ["2", "0", "1"]
    assert order("-heard") == ["0", "1", "2"]


def test_pages_follow_one_another() -> None:
    rows = fleet(east=BROKERS_PAGE + 1, west=1)
    first, last = (page(rows, Wanted(cluster="east"), start) for start in (0, BROKERS_PAGE))
    assert (first["matched"], len(first["brokers"])) == (BROKERS_PAGE + 1, BROKERS_PAGE)
    assert [one["broker"] for one in last["brokers"]] == [f"broker-{BROKERS_PAGE:03}"]
    assert page(rows, Wanted(), 10 * BROKERS_PAGE)["brokers"] == []
