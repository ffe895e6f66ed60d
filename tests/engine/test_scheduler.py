"""Requests run in order, the youngest gives way, and everybody ends."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dart_jax.engine.pages import PagePool
from dart_jax.engine.request import Request
from dart_jax.engine.scheduler import Scheduler
from dart_jax.engine.sequence import Sequence

PAGE, LONGEST = 4, 40


def new_scheduler(slots=3, pages=30):
    return Scheduler(slots, [PagePool(pages, PAGE)], LONGEST)


def sequence(prompt, new, tag=0):
    tokens = np.full(prompt, tag, np.int32)
    return Sequence(Request(tokens, new), LONGEST)


def read_next(scheduler):
    first = scheduler.begin_next()
    if first is not None:
        first.advance(first.num_unread_tokens)
        scheduler.publish_pages(first)
        scheduler.end_reading(first)
    return first


def test_the_youngest_gives_way_and_is_the_next():
    scheduler = new_scheduler(pages=12)
    old, young, waits = (sequence(14, 20, tag) for tag in range(3))
    scheduler.waiting.extend([old, young, waits])
    assert [read_next(scheduler), read_next(scheduler)] == [old, young]
    assert read_next(scheduler) is None  # no page would be left for the others
    for s in (old, young):
        s.append(np.zeros(10, np.int32), drafted=False)
    scheduler.make_room(9)
    assert scheduler.running == [old]
    assert list(scheduler.waiting) == [young, waits]
    assert (young.slot, young.pages, young.num_tokens) == (None, [], 24)
    assert scheduler.preemptions == 1
    scheduler.end(old)
    assert read_next(scheduler) is young


def test_what_texts_share_is_read_once_and_holds_up_no_others():
    scheduler = Scheduler(4, [PagePool(30, 16)], 100)
    first, alike, again, other = (
        Sequence(Request(np.array(tokens, np.int32), 4), 100)
        for tokens in ([*range(40)], [*range(30), 50], [*range(40)], [*range(50, 70)])
    )
    scheduler.waiting.extend([first, alike, again, other])
    assert [scheduler.begin_next() for _ in range(3)] == [first, other, None]
    first.advance(28)
    assert scheduler.begin_next() is None
    first.advance(1)
    scheduler.publish_pages(first)
    assert scheduler.begin_next() is alike
    assert alike.copy == (first.pages[1], alike.pages[1])
    assert (alike.pages[0], alike.num_unread_tokens) == (first.pages[0], 1)
    assert scheduler.begin_next() is None
    # Who waited, and finds nothing, reads by itself.
    scheduler.end(first)
    scheduler.end(alike)
    scheduler.pools[0].release(scheduler.pools[0].take(scheduler.pools[0].free))
    assert scheduler.begin_next() is again
    assert again.num_unread_tokens == 39
    assert again.copy is None


def test_the_last_page_is_used_in_place():
    """A text for which all pages are needed takes the source of the copy itself."""
    scheduler = Scheduler(1, [PagePool(2, 16)], 32)
    for tokens in ([*range(12)], [*range(10), *range(50, 60)]):
        one = Sequence(Request(np.array(tokens, np.int32), 4), 32)
        scheduler.waiting.append(one)
        assert read_next(scheduler) is one
        assert (one.copy, one.pages[0]) == (None, 0)
        scheduler.end(one)
    assert scheduler.hits == 9


@settings(max_examples=40)
@given(
    st.lists(st.tuples(st.integers(1, 20), st.integers(1, 25), st.integers(0, 2)), max_size=12),
    st.integers(10, 30),
    st.integers(1, 4),
    st.randoms(use_true_random=False),
)
def test_all_end(requests, pages, slots, random):
    """However few pages there are, as long as one text fits: every request ends, a waiting one is
    overtaken by no later one, and nothing is held at the end."""
    scheduler = new_scheduler(slots, pages)
    sequences = [sequence(*request) for request in requests]
    scheduler.waiting.extend(sequences)
    order = []
    for _ in range(2000):
        if not (scheduler.waiting or scheduler.active):
            break
        while (one := read_next(scheduler)) is not None:
            if one not in order:
                order.append(one)
        scheduler.make_room(5)
        assert scheduler.running
        assert scheduler.running[0] is min(scheduler.running, key=sequences.index)
        for one in list(scheduler.running):
            assert len(one.pages) * PAGE >= min(one.num_computed_tokens + 5, LONGEST)
            new = np.zeros(min(random.randint(1, 5), one.remaining), np.int32)
            one.append(new, drafted=False)
            if one.remaining == 0 or random.random() < 0.02:
                scheduler.end(one)
            else:
                scheduler.publish_pages(one)
        if scheduler.waiting and random.random() < 0.02:  # one that waits, too
            sequences.remove(scheduler.waiting[-1])
            scheduler.end(scheduler.waiting[-1])
        held = {page for one in scheduler.running for page in one.pages}
        assert scheduler.pools[0].used == len(held)
    assert not scheduler.waiting
    assert scheduler.active == []
    assert [one for one in order if one in sequences] == sequences
    assert scheduler.pools[0].used == 0


def test_groups_of_devices_have_slots_and_pages_of_their_own():
    scheduler = Scheduler(2, [PagePool(8, PAGE), PagePool(8, PAGE)], LONGEST)
    sequences = [sequence(9, 20, tag) for tag in range(5)]
    scheduler.waiting.extend(sequences)
    for _ in range(4):
        assert read_next(scheduler) is not None
    assert read_next(scheduler) is None
    assert [scheduler.group(one) for one in scheduler.running] == [0, 1, 0, 1]
    assert [pool.used for pool in scheduler.pools] == [6, 6]
    scheduler.end(sequences[1])
    assert scheduler.group(read_next(scheduler)) == 1
    for one in scheduler.running:
        one.append(np.zeros(12, np.int32), drafted=False)
    scheduler.make_room(5)  # the youngest of each group gives way
    assert scheduler.running == [sequences[0], sequences[3]]
    assert [*scheduler.waiting] == [sequences[4], sequences[2]]
