class Context:
    device_id: int
