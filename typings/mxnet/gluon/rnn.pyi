from .block import HybridBlock

class RNN(HybridBlock):
    def __init__(self, hidden_size: int, activation: str, layout: str, input_size: int) -> None: ...

class LSTM(HybridBlock):
    def __init__(self, hidden_size: int, layout: str, input_size: int) -> None: ...
