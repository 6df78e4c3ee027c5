from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from stockade.decide.memory import Memory


def test_it_gives_back_what_was_put_and_none_for_the_rest() -> None:
    memory: Memory[str, int] = Memory(2)
    memory.put("a", 1)
    assert (memory.get("a"), memory.get("b")) == (1, None)
    memory.put("a", 2)
    assert memory.get("a") == 2


def test_it_is_bounded_and_forgets_what_is_not_used() -> None:
    memory: Memory[int, int] = Memory(10)
    for number in range(1000):
        memory.put(number, number)
        assert memory.get(0) == 0, "it was used all the time"
        assert len(memory) <= 20
    assert memory.get(500) is None
    assert memory.get(999) == 999


def test_threads_share_it_without_mixing_values_up() -> None:
    memory: Memory[int, int] = Memory(8)

    def use(start: int) -> None:
        for number in range(start, start + 20_000):
            key = number % 50
            assert memory.get(key) in (None, key * key)
            memory.put(key, key * key)

    with ThreadPoolExecutor(8) as pool:
        for done in [pool.submit(use, start) for start in range(8)]:
            done.result(60)
    assert len(memory) <= 2 * 8 + 8
