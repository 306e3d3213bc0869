class DataParallelExecutorGroup:
    batch_size: int
