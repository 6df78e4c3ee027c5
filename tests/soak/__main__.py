"""`python -m tests.soak`: many random cases against the reference (make soak)."""

from __future__ import annotations

import argparse
import os
import secrets
import time
from concurrent.futures import ProcessPoolExecutor
from functools import partial

from tests.soak.judge import Judge, Tally

# Of a thousand cases. About 150 are usual; with none the laws would say nothing.
LEAST_ACCEPTED = 50
_CHUNK = 2000


def run(seed: int, first: int, count: int) -> Tally:
    """Raises Broken, whose text names the seed and the case."""
    judge = Judge()
    for number in range(first, first + count):
        judge.case(seed, number)
    return judge.tally


def run_all(seed: int, first: int, count: int) -> Tally:
    """`run` on every processor, each chunk with a memory of its own."""
    starts = range(first, first + count, _CHUNK)
    counts = [min(_CHUNK, first + count - start) for start in starts]
    total = Tally()
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        for tally in pool.map(partial(run, seed), starts, counts):
            total.add(tally)
    return total


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int, default=200_000)
    options = parser.parse_args()
    started = time.monotonic()
    print(f"seed {options.seed}", flush=True)
    tally = run_all(options.seed, options.first, options.count)
    took = time.monotonic() - started
    print(
        f"{options.count} cases in {took:.0f} s: {tally.verified} tokens held, {tally.accepted} "
        f"calls accepted by both, {tally.refused_alone} refused by the package alone, "
        f"{tally.compiled} plans"
    )
    print("accepted:", dict(tally.kinds.most_common()))
    print("refused:", dict(tally.codes.most_common()))
    if options.count >= 1000 and tally.accepted * 1000 < options.count * LEAST_ACCEPTED:
        raise SystemExit("too few were accepted for the laws to say anything")


if __name__ == "__main__":
    main()
