"""Pages are held by those who took them, found by their tokens, and never lost."""

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from dart_jax.engine.pages import EMPTY_HASH, SHARED_ROWS, PagePool, hash_page

PAGE = 4


def written(pool, tokens, drafted=True):
    """Takes and writes the pages of a text, lets them be found, and returns them."""
    size = pool.page
    prefix, key, *_ = pool.find(tokens, drafted=drafted)
    pages = prefix + pool.take(-(-len(tokens) // size) - len(prefix))
    for n in range(len(prefix), len(pages)):
        new = tokens[n * size : (n + 1) * size + 1]
        rows = len(new) - 1
        if rows:
            pool.note(pages[n], key, new, drafted=rows if drafted else 0)
        if rows == size:
            key = hash_page(key, new)
            pool.publish(pages[n], key, drafted=drafted)
    return pages


def text(*tokens):
    return np.array(tokens, np.int32)


def test_what_nobody_holds_is_kept_until_it_is_needed():
    pool = PagePool(3, PAGE)
    first = written(pool, text(*range(9)))
    pool.release(first)
    assert (pool.used, pool.free) == (0, 3)
    prefix, *_ = pool.find(text(*range(9)), drafted=True)
    assert prefix == first[:2]
    pool.release(prefix)
    # The end of a text goes first: without its beginning it would be of no use.
    taken = pool.take(2)
    assert first[0] not in taken
    assert pool.find(text(*range(9)), drafted=True)[0] == first[:1]
    pool = PagePool(3, PAGE, reuse=False)
    pool.release(written(pool, text(*range(9))))
    assert pool.find(text(*range(9)), drafted=True) == ([], EMPTY_HASH, None, 0)


def test_the_lowest_pages_are_taken_first_and_again():
    """Others need no memory."""
    pool = PagePool(9, PAGE, reuse=False)
    assert pool.take(6) == [*range(6)]
    pool.release([4, 1, 2])
    assert pool.take(4) == [1, 2, 4, 6]


def test_texts_without_drafts_find_all_pages_and_others_those_of_the_drafter():
    pool, tokens = PagePool(12, PAGE), text(*range(9))
    plain = written(pool, tokens, drafted=False)
    assert pool.find(tokens, drafted=True) == ([], EMPTY_HASH, None, 0)
    drafted = written(pool, tokens, drafted=True)
    assert not set(plain) & set(drafted)
    for wanted in (True, False):
        assert pool.find(tokens, drafted=wanted)[0] == drafted[:2]


def test_the_page_that_shares_the_longest_beginning_is_the_source():
    pool = PagePool(16, 16)
    first = written(pool, text(*range(46)))
    other = text(*range(20), *range(90, 110))
    assert pool.find(other, drafted=True)[2:] == (None, 0)  # 3 rows are not worth it
    other = text(*range(28), *range(90, 110))
    pages, _, source, rows = pool.find(other, drafted=True)
    # The drafter's row of 27 has seen that 28 follows.
    assert (pages, source, rows) == (first[:1], first[1], 11)
    second = written(pool, other)
    pages, _, source, rows = pool.find(text(*range(28), 90, 91, 5), drafted=True)
    assert (source, rows) == (second[1], 13)
    # What only the target has written serves only texts like it.
    plain = written(pool, text(*range(44), 7, 8, 9), drafted=False)
    other = text(*range(44), 7, 8)
    assert pool.find(other, drafted=False)[2:] == (plain[2], 13)
    assert pool.find(other, drafted=True)[2:] == (first[2], 11)
    for n in (0, 7, 8, 14):
        pages, _, source, rows = pool.find(text(*range(n + 1)), drafted=True)
        assert (pages, rows) == ([], n if n >= SHARED_ROWS else 0)
        assert source == (first[0] if rows else None)


def test_few_pages_are_compared():
    """The latest ones; others are forgotten."""
    pool = PagePool(100, 16)
    for n in range(80):
        pool.release(written(pool, text(*range(n, n + 12))))
    found = [pool.find(text(*range(n, n + 12)), drafted=True).source for n in range(80)]
    assert 8 < sum(source is not None for source in found) < 80
    assert found[-1] is not None


@settings(max_examples=60)
@given(st.data())
def test_any_history(data):
    """Whatever is taken and released: a page has the tokens it is found by, is not given to two
    texts unless it was found, and all come back."""
    page = data.draw(st.sampled_from([PAGE, 16]))
    pool, contents, holders = PagePool(12, page), {}, []
    for _ in range(data.draw(st.integers(1, 40))):
        if holders and data.draw(st.booleans()):
            pool.release(holders.pop(data.draw(st.integers(0, len(holders) - 1))))
            continue
        # Few tokens, so that texts begin alike.
        tokens = text(*data.draw(st.lists(st.integers(0, 1), min_size=1, max_size=20)))
        tokens = np.repeat(tokens, data.draw(st.integers(1, page // 4)))
        drafted = data.draw(st.booleans())
        prefix, _, source, rows = pool.find(tokens, drafted=drafted)
        for n, number in enumerate(prefix):
            begins, by_drafter = contents[number]
            assert begins == tokens[: (n + 1) * page + 1].tolist()
            assert by_drafter or not drafted
        if source is not None:
            begins, by_drafter = contents[source]
            end = len(prefix) * page + rows + 1
            assert begins[:end] == tokens[:end].tolist()
            assert by_drafter or not drafted
        pool.release(prefix)
        if -(-len(tokens) // page) > pool.free:
            continue
        pages = written(pool, tokens, drafted)
        new = set(pages) - set(prefix)
        assert not new & {number for held in holders for number in held}
        for n, number in enumerate(pages[len(prefix) :], len(prefix)):
            contents[number] = tokens[: (n + 1) * page + 1].tolist(), drafted
        holders.append(pages)
        assert pool.used == len({number for held in holders for number in held})
    for held in holders:
        pool.release(held)
    assert (pool.used, pool.free) == (0, 12)
    assert sorted(pool.take(12)) == list(range(12))
