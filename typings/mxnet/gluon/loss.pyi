from .block import HybridBlock

class HuberLoss(HybridBlock):
    def __init__(self, rho: float) -> None: ...
