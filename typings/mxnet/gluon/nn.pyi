from .block import Block as Block
from .block import HybridBlock as HybridBlock

class Dense(HybridBlock):
    def __init__(self, units: int, activation: str | None = None, in_units: int = 0) -> None: ...

class Conv2D(HybridBlock):
    def __init__(
        self,
        channels: int,
        kernel_size: int,
        *,
        padding: int = 0,
        activation: str | None = None,
        in_channels: int = 0,
    ) -> None: ...

class MaxPool2D(HybridBlock):
    def __init__(self, pool_size: int) -> None: ...

class AvgPool2D(HybridBlock):
    def __init__(self, pool_size: int) -> None: ...

class HybridSequential(HybridBlock):
    def __getitem__(self, key: int) -> HybridBlock: ...
    def __len__(self) -> int: ...
    def add(self, *blocks: Block) -> None: ...
