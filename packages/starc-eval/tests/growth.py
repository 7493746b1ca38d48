"""How work grows with its input: by what factor it rises where the input becomes four times as big.

Linear work rises fourfold, n log n slightly more, quadratic work sixteenfold. Processor time of
the same process in the same minute is compared with itself, so the speed of the machine cancels.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable
from typing import TypeVar

NEAR_LINEAR = 9.0
"""Well above 4 log(4n) / log n, well below 16."""

T = TypeVar("T")


def growth(make: Callable[[int], T], work: Callable[[T], object], n: int) -> float:
    """Cost of `work` on `make(4 * n)` over its cost on `make(n)`, the least of three of each."""

    def cost(size: int) -> float:
        material = make(size)
        costs = []
        for _ in range(3):
            gc.collect()
            start = time.process_time()
            work(material)
            costs.append(time.process_time() - start)
        return min(costs)

    return cost(4 * n) / cost(n)
