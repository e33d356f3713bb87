from __future__ import annotations

import threading

from broker_agent.concurrency import CopyOnWriteList


def test_a_closed_list_takes_nothing_more_and_says_so() -> None:
    items: CopyOnWriteList[int] = CopyOnWriteList()
    assert items.append(1)
    assert items.close() == (1,)
    assert not items.append(2)
    assert items.close() == (1,)


def test_no_item_is_lost_when_many_threads_append() -> None:
    items: CopyOnWriteList[int] = CopyOnWriteList()

    def append_all(start: int) -> None:
        for item in range(start, start + 200):
            items.append(item)

    writers = [threading.Thread(target=append_all, args=(start,)) for start in range(0, 1600, 200)]
    for writer in writers:
        writer.start()
    for writer in writers:
        writer.join(10)
    assert sorted(items.close()) == list(range(1600))
