from collections.abc import Iterable, Sequence

class Aligner:
    def __init__(
        self,
        node_words: memoryview,
        child_starts: memoryview,
        target_starts: memoryview,
        targets: memoryview,
    ) -> None: ...
    def add_word(
        self, key: int, stem: int, function: bool, synsets: Sequence[int], number: int
    ) -> int: ...
    def add_sentence(self, words: Sequence[int]) -> int: ...
    def statistics(self, pairs: Iterable[tuple[int, int]]) -> bytes: ...
