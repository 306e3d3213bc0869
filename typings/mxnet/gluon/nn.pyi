from .block import HybridBlock as HybridBlock

class Dense(HybridBlock):
    def __init__(self, units: int, activation: str | None = None, in_units: int = 0) -> None: ...

class HybridSequential(HybridBlock):
    def add(self, *blocks: HybridBlock) -> None: ...
